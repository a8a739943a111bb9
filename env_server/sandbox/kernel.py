"""System calls that Python 3.11 has no function for. Every failure is an OSError."""

from __future__ import annotations

import ctypes
import os

_LIBC = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38

_CAPABILITY_VERSION_3 = 0x20080522
_NUM_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(what: str, number: int, *arguments: object) -> int:
    """A call by its number; integers and pointers only."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    return _check(_LIBC.syscall(ctypes.c_long(number), *words), what)


def prctl(what: str, option: int, *arguments: object) -> None:
    """A process setting."""
    words = [ctypes.c_ulong(word) if isinstance(word, int) else word for word in arguments]
    words += [ctypes.c_ulong(0)] * (4 - len(words))
    _check(_LIBC.prctl(option, *words), what)


def unshare(flags: int) -> None:
    """Leave namespaces for new ones."""
    _check(_LIBC.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Mount, bind or remount."""
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    result = _LIBC.mount(*words, ctypes.c_ulong(flags), None if data is None else data.encode())
    _check(result, f"mount {target}")


def unmount(target: str, flags: int) -> None:
    """Unmount."""
    _check(_LIBC.umount2(os.fsencode(target), flags), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root and put the old one at `old`."""
    number = _NUM_PIVOT_ROOT[os.uname().machine]
    syscall("pivot_root", number, ctypes.c_char_p(os.fsencode(new)), ctypes.c_char_p(os.fsencode(old)))


def drop_capabilities() -> None:
    """Give up every capability for good."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check(_LIBC.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies. A change of user undoes it."""
    prctl("prctl(PR_SET_PDEATHSIG)", PR_SET_PDEATHSIG, 9)
