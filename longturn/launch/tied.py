"""Runs a command that dies with the process that started it: `python -m longturn.launch.tied PARENT_PID COMMAND...`.

A launcher that is killed with SIGKILL cannot end its daemons, so the kernel does it (Linux; elsewhere the command runs
untied).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent, then become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # The parent may have died before the call above took hold.
    if os.getppid() != parent:
        sys.exit("the process that asked for this command is gone")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
