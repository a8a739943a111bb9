"""A fixed list of commands that wins, and where an episode stands on it."""

from collections.abc import Callable, Collection, Sequence


class GoldPath:
    """Remembers what was played; the list is made only when it is first asked for."""

    def __init__(self, make: Callable[[], Sequence[str]], *, takes_no_time: Collection[str]) -> None:
        """`takes_no_time`: commands that change nothing, wherever they come."""
        self._make = make
        self._takes_no_time = takes_no_time
        self._path: Sequence[str] | None = None
        self._played: list[str] = []
        self._position = 0
        self._is_left = False

    def follow(self, command: str) -> None:
        """The command was played, and understood."""
        self._played.append(command)

    def next(self) -> str | None:
        """The next command of the list; None where it has ended, or was left."""
        if self._path is None:
            self._path = self._make()
        for command in self._played:
            self._advance(self._path, command)
        self._played.clear()
        return self._path[self._position] if not self._is_left and self._position < len(self._path) else None

    def _advance(self, path: Sequence[str], command: str) -> None:
        if self._position < len(path) and command.lower() == path[self._position].lower():
            self._position += 1
        elif command.lower() not in self._takes_no_time:
            self._is_left = True
