"""A process that ends with the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int, *, by: int = signal.SIGKILL) -> None:
    """Have the kernel end this process when its parent dies (Linux; elsewhere nothing); exit if it is already gone.

    Raises OSError if the kernel refuses: the process could outlive its parent.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, by) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    # The parent may have died before the call above took hold.
    if os.getppid() != parent_pid:
        sys.exit("the process that started this one is gone")
