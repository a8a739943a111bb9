"""Trajectory files: `longturn.v1.Trajectory` messages one after the other, each preceded by its length as a varint.

Any protobuf library reads them (`parseDelimitedFrom` and its kin). The writer replaces the file only when it is
complete, so a reader never meets half a recording under the final name.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from google.protobuf import proto
from google.protobuf.message import DecodeError

from longturn.codec import trajectory_from_proto, trajectory_to_proto
from longturn.disk import whole_file
from longturn.errors import ConfigError, WireError
from longturn.records import Trajectory
from longturn.v1 import trajectory_pb2


class TrajectoryWriter:
    """Writes trajectories beside `path` and moves them there on a clean exit; an exception leaves `path` as it was.

    DiskError if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._stack = ExitStack()
        self._file = self._stack.enter_context(whole_file(path))
        self.num_written = 0

    def write(self, trajectory: Trajectory) -> None:
        """Append one trajectory."""
        # The library asks for BytesIO by type and for any buffered file in its text.
        proto.serialize_length_prefixed(trajectory_to_proto(trajectory), self._file)  # pyright: ignore[reportArgumentType]
        self.num_written += 1

    def __enter__(self) -> TrajectoryWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """The trajectories of a file, in order, one at a time.

    Raises ConfigError if there is no such file, WireError naming the first record that does not parse.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(
            f"trajectory file {path} cannot be read ({error.strerror}); write one with `longturn act --record {path}`"
        ) from error
    with file:
        num_read = 0
        while True:
            message = _read_message(path, num_read, file)
            if message is None:
                return
            yield trajectory_from_proto(message)
            num_read += 1


def _read_message(path: Path, index: int, file: io.BufferedReader) -> trajectory_pb2.Trajectory | None:
    try:
        return proto.parse_length_prefixed(trajectory_pb2.Trajectory, file)  # pyright: ignore[reportArgumentType]
    except (DecodeError, ValueError, EOFError) as error:
        raise WireError(f"{path}: record {index} is damaged or cut short: {error}") from error
