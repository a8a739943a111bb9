"""`python -m env_server` is `longturn serve`."""

from env_server.commands import serve
from longturn.cli import run_single

if __name__ == "__main__":
    run_single(serve, "env_server")
