"""`python -m learner` is `longturn learn`."""

from learner.commands import learn
from longturn.cli import run_single

if __name__ == "__main__":
    run_single(learn, "learner")
