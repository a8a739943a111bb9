"""Fast Downward's state machine for one game, through its C interface.

The library keeps its state in globals, so every running game has a copy of its own, lent out by `Libraries` and
given back for the next game. There are never more copies than games were in play at once, and none is ever unloaded:
the copies share a registry of C++ whose entries would point into what was unloaded, and the process would crash at its
exit. The package's own loader copies 34 MB for each, nearly all of it debug information; ours copies the megabyte that
the system's loader maps.
"""

import re
import struct
import tempfile
import threading
from collections.abc import Sequence
from ctypes import CDLL, POINTER, Array, c_bool, c_char_p, c_int
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

_ATOM = re.compile(r"(?P<kind>Atom|NegatedAtom) (?P<predicate>[^(]+)\((?P<arguments>[^)]*)\)")

Change = tuple[bool, str, tuple[str, ...]]
"""(whether it became true, predicate, arguments)."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A ground action that can be taken now."""

    id: int
    name: str
    """Action and arguments, in one string as the library gives it."""
    num_effects: int

    @property
    def words(self) -> list[str]:
        """The action and its arguments."""
        return self.name.split()


class Libraries:
    """Copies of the library, as many as were needed at once."""

    def __init__(self) -> None:
        self._idle: list[CDLL] = []
        self._lock = threading.Lock()

    def take(self) -> CDLL:
        """A copy for one game alone."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return _load()

    def give_back(self, library: CDLL) -> None:
        """The game is over: free its task and keep the copy for another."""
        library.cleanup()
        with self._lock:
            self._idle.append(library)


class Simulator:
    """A game in play."""

    def __init__(self, libraries: Libraries, sas: bytes) -> None:
        self._libraries = libraries
        self._library: CDLL | None = libraries.take()
        self._library.load_sas(sas)

    def operators(self) -> list[Operator]:
        """What can be done now, in the library's order, each name once."""
        library = self._open()
        buffer = (_fast_downward().Operator * library.get_applicable_operators_count())()
        library.get_applicable_operators(buffer)
        found: dict[str, Operator] = {}
        for item in buffer:
            found.setdefault(item.name, Operator(item.id, item.name, item.nb_effect_atoms))
        return list(found.values())

    def apply(self, operator: Operator) -> list[Change]:
        """Take an action that `operators` gave since the last one; its effects, conditional ones as if they held."""
        buffer = (_fast_downward().Atom * operator.num_effects)()
        self._open().apply_operator(operator.id, buffer)
        return _changes(buffer)

    def facts(self) -> list[Change]:
        """The value of every variable; tens of milliseconds."""
        library = self._open()
        buffer = (_fast_downward().Atom * library.get_state_size())()
        library.get_state(buffer)
        return _changes(buffer)

    def is_won(self) -> bool:
        """The game's own goal test."""
        return bool(self._open().check_goal())

    def close(self) -> None:
        """Give the library back; idempotent."""
        if self._library is not None:
            library, self._library = self._library, None
            self._libraries.give_back(library)

    def _open(self) -> CDLL:
        if self._library is None:
            raise RuntimeError("the game is closed")
        return self._library


def _fast_downward() -> Any:
    return import_module("fast_downward")  # GPL, of an extra: this module must import without it


def _load() -> CDLL:
    package = _fast_downward()
    with tempfile.NamedTemporaryFile(prefix="libdownward-", suffix=".so") as copy:
        copy.write(_mapped_part())
        copy.flush()
        library = CDLL(copy.name)
    library.load_sas.argtypes, library.load_sas.restype = [c_char_p], c_int
    library.cleanup.argtypes, library.cleanup.restype = [], None
    library.get_applicable_operators_count.argtypes = []
    library.get_applicable_operators.argtypes = [POINTER(package.Operator)]
    library.get_applicable_operators.restype = None
    library.apply_operator.argtypes = [c_int, POINTER(package.Atom)]
    library.get_state_size.argtypes = []
    library.get_state.argtypes, library.get_state.restype = [POINTER(package.Atom)], None
    library.check_goal.argtypes, library.check_goal.restype = [], c_bool
    return library


@cache
def _mapped_part() -> bytes:
    """The library without what no segment holds: symbols for debuggers, and the table of sections that names them.

    What is no 64-bit little-endian ELF file is taken whole.
    """
    content = Path(_fast_downward().interface.DOWNWARD_LIB_PATH).read_bytes()
    if content[:6] != b"\x7fELF\x02\x01":
        return content
    (table,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    end = 0
    for start in range(table, table + size * count, size):
        (offset,), (num_bytes,) = (
            struct.unpack_from("<Q", content, start + 8),
            struct.unpack_from("<Q", content, start + 32),
        )
        end = max(end, offset + num_bytes)
    part = bytearray(content[:end])
    struct.pack_into("<Q", part, 40, 0)  # no table of sections
    struct.pack_into("<HHH", part, 58, 0, 0, 0)
    return bytes(part)


def _changes(buffer: "Array[Any]") -> list[Change]:
    matches = (_ATOM.fullmatch(item.name) for item in buffer)
    return [
        (match["kind"] == "Atom", match["predicate"], _words(match["arguments"])) for match in matches if match
    ]  # fmt: skip


def _words(arguments: str) -> tuple[str, ...]:
    parts: Sequence[str] = arguments.split(", ") if arguments else ()
    return tuple(parts)
