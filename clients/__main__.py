"""`python -m clients` is `longturn act`."""

from __future__ import annotations

from clients.commands import act
from longturn.cli import run_single

if __name__ == "__main__":
    run_single(act, "clients")
