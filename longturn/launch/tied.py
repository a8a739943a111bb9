"""Runs a command that dies with the process that started it: `python -m longturn.launch.tied PARENT_PID COMMAND...`.

A launcher that is killed with SIGKILL cannot end its daemons, so the kernel does it (Linux; elsewhere the command runs
untied).
"""

from __future__ import annotations

import os
import sys

from longturn.parent import die_with_parent


def main() -> None:
    """Tie this process to its parent, then become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    die_with_parent(parent)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
