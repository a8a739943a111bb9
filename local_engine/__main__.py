"""`python -m local_engine` is `longturn engine`."""

from local_engine.commands import engine
from longturn.cli import run_single

if __name__ == "__main__":
    run_single(engine, "engine")
