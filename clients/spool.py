"""Finished trajectories that the learner has not acknowledged, in a folder that survives the pool.

Invariant: a trajectory is in the folder from before it is first sent until its ack arrives. Files appear complete, by
rename; nothing here is fsynced, so a killed process loses nothing and a crashed machine may.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.message import DecodeError

from longturn.codec import identity_from_proto, identity_to_proto
from longturn.disk import naming, write_whole
from longturn.errors import ConfigError, LongturnError, WireError
from longturn.records import TrajectoryIdentity
from longturn.v1 import dispatch_pb2

_SUFFIX = ".submission"


class Spool:
    """Unacknowledged submissions by identity, oldest first. One process per folder."""

    def __init__(self, folder: Path) -> None:
        """Open a folder and read what an earlier life left; raise ConfigError if another process uses it.

        This and all other methods raise DiskError if the disk refuses; nothing acknowledged is lost then, and what was
        not kept is played again.
        """
        self._folder = folder
        with naming(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise ConfigError(
                f"another actor pool uses {folder}; give each pool of a run its own name with act.pool_id"
            ) from error
        try:
            self._submissions = {identity_from_proto(message.identity): message for message in self._read_all()}
        except LongturnError:
            self.close()
            raise

    def add(self, identity: TrajectoryIdentity, trajectory: bytes) -> dispatch_pb2.SubmitTrajectory:
        """Keep a serialised trajectory and return the message that submits it."""
        message = dispatch_pb2.SubmitTrajectory(trajectory=trajectory, identity=identity_to_proto(identity))
        write_whole(self._path(identity), message.SerializeToString(), make_folder=False)
        self._submissions[identity] = message
        return message

    def remove(self, identity: TrajectoryIdentity) -> None:
        """Forget an acknowledged trajectory; unknown ones are acks that came twice."""
        if self._submissions.pop(identity, None) is not None:
            path = self._path(identity)
            with naming(path):
                path.unlink(missing_ok=True)

    def __len__(self) -> int:
        return len(self._submissions)

    def __contains__(self, identity: TrajectoryIdentity) -> bool:
        return identity in self._submissions

    def __iter__(self) -> Iterator[TrajectoryIdentity]:
        return iter(list(self._submissions))

    def message(self, identity: TrajectoryIdentity) -> dispatch_pb2.SubmitTrajectory:
        """The message that submits a kept trajectory."""
        return self._submissions[identity]

    def close(self) -> None:
        """Let another process have the folder; the files stay."""
        self._lock.close()

    def _path(self, identity: TrajectoryIdentity) -> Path:
        text = f"{identity.run_id}\0{identity.group_id}\0{identity.attempt}\0{identity.member_index}"
        return self._folder / f"{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}{_SUFFIX}"

    def _read_all(self) -> Iterator[dispatch_pb2.SubmitTrajectory]:
        with naming(self._folder):
            files = sorted(self._folder.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime_ns)
        for path in files:
            with naming(path):
                data = path.read_bytes()
            try:
                yield dispatch_pb2.SubmitTrajectory.FromString(data)
            except DecodeError as error:
                raise WireError(f"{path} is damaged; delete it to go on without its trajectory") from error
