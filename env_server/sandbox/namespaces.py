"""Namespaces: own processes, own network without any device, an own file tree with the standard library and no more."""

from __future__ import annotations

import os

from env_server.sandbox import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_KINDS = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
_STAGE = "/proc"
"""Where the new tree is built; a folder that holds nothing which it needs."""
_FIRST_USER = 1_000_000_000
_NOBODY = 65_534
_COVERED = ("site-packages", "dist-packages")
_LOCKED_FLAGS = {
    os.ST_RDONLY: kernel.MS_RDONLY,
    os.ST_NOSUID: kernel.MS_NOSUID,
    os.ST_NODEV: kernel.MS_NODEV,
    os.ST_NOEXEC: kernel.MS_NOEXEC,
    os.ST_NOATIME: 1024,
    os.ST_NODIRATIME: 2048,
    os.ST_RELATIME: 1 << 21,
}


def enter() -> None:
    """Move to new namespaces; processes forked from now on are in the new process namespace. OSError if not allowed."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        try:
            kernel.unshare(_KINDS)
        except PermissionError:  # root without CAP_SYS_ADMIN, as in containers
            pass
        else:
            return
    kernel.unshare(_KINDS | kernel.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def replace_root(folders: Iterable[str], devices: Iterable[str]) -> None:
    """Make a read-only tree of `folders`, without what was installed into them, and `devices` the only one there is."""
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    folder_flags = {folder: _flags(folder) | kernel.MS_NODEV for folder in folders}
    device_flags = {device: _flags(device) for device in devices}
    kernel.mount("tmpfs", _STAGE, "tmpfs", kernel.MS_NOSUID, "size=1m,mode=755")
    for folder, flags in folder_flags.items():
        os.makedirs(_STAGE + folder, exist_ok=True)
        _bind(folder, flags)
        for name in _COVERED:
            if os.path.isdir(f"{_STAGE}{folder}/{name}"):
                kernel.mount("tmpfs", f"{_STAGE}{folder}/{name}", "tmpfs", kernel.MS_RDONLY, "size=4k")
    for device, flags in device_flags.items():
        os.makedirs(os.path.dirname(_STAGE + device), exist_ok=True)
        os.close(os.open(_STAGE + device, os.O_CREAT | os.O_WRONLY, 0o600))
        _bind(device, flags)
    kernel.mount("tmpfs", _STAGE, None, kernel.MS_REMOUNT | kernel.MS_RDONLY | kernel.MS_NOSUID)
    os.chdir(_STAGE)
    kernel.pivot_root(".", ".")  # the old root now lies over the new one
    kernel.unmount(".", kernel.MNT_DETACH)
    os.chdir("/")


def _bind(path: str, flags: int) -> None:
    kernel.mount(path, _STAGE + path, None, kernel.MS_BIND | kernel.MS_REC)
    remount = kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | kernel.MS_NOSUID
    kernel.mount("none", _STAGE + path, None, remount | flags)


def _flags(path: str) -> int:
    """Mount flags that a remount in an own user namespace may not drop."""
    held = os.statvfs(path).f_flag
    return sum(flag for bit, flag in _LOCKED_FLAGS.items() if held & bit)


def become_nobody(number: int) -> None:
    """If this is root, become a user that only `number` has."""
    if os.geteuid() != 0:
        return
    # The kernel counts processes per user, and root's not at all: no two sandboxes may share one.
    for user in (_FIRST_USER + number, _NOBODY):
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        except OSError:  # a user namespace without this number, or without any but root's own
            continue
        return
