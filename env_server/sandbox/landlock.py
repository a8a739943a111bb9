"""Landlock: the kernel refuses files, TCP and signals that no rule allows (Linux 5.13 and later)."""

from __future__ import annotations

import ctypes
import os
import struct

from env_server.sandbox import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1

_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_FILE_RIGHTS_OF_ABI = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
"""Which rights over files each version of the interface added."""
_NET_RIGHTS = 0b11
_NET_ABI = 4
_SCOPES = 0b11
_SCOPE_ABI = 6
MIN_ABI = 3
"""Earlier versions cannot forbid to truncate a file."""


def abi() -> int:
    """Version of the interface; OSError where there is none."""
    return kernel.syscall("landlock", _CREATE_RULESET, None, 0, _VERSION_FLAG)


def restrict_files(readable: Iterable[str], listable: Iterable[str], devices: Iterable[str]) -> None:
    """Allow to read `readable` and all below, to list `listable`, to use `devices`; nothing else, and no TCP.

    Raises OSError where Landlock is absent or too old to do this whole.
    """
    version = abi()
    if version < MIN_ABI:
        raise OSError(f"Landlock ABI {version} is older than {MIN_ABI}")
    handled = sum(bits for added, bits in _FILE_RIGHTS_OF_ABI.items() if added <= version)
    network = _NET_RIGHTS if version >= _NET_ABI else 0
    ruleset = _create(handled, network, 0, version)
    for path in readable:
        _allow(ruleset, path, _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0))
    for path in listable:
        _allow(ruleset, path, _READ_DIR)
    for path in devices:
        _allow(ruleset, path, _READ_FILE | _WRITE_FILE)
    _enter(ruleset)


def restrict_signals() -> None:
    """Forbid signals and abstract sockets to processes outside; does nothing before ABI 6."""
    version = abi()
    if version >= _SCOPE_ABI:
        _enter(_create(0, 0, _SCOPES, version))


def _create(files: int, network: int, scopes: int, version: int) -> int:
    num_words = 3 if version >= _SCOPE_ABI else 2 if version >= _NET_ABI else 1
    attributes = struct.pack("=3Q", files, network, scopes)[: 8 * num_words]
    return kernel.syscall("landlock_create_ruleset", _CREATE_RULESET, ctypes.c_char_p(attributes), len(attributes), 0)


def _allow(ruleset: int, path: str, rights: int) -> None:
    beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rule = struct.pack("=Qi", rights, beneath)
    kernel.syscall("landlock_add_rule", _ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.c_char_p(rule), 0)
    os.close(beneath)


def _enter(ruleset: int) -> None:
    kernel.syscall("landlock_restrict_self", _RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
