"""Where everything of a run lies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from longturn.errors import ConfigError
from longturn.launch.child import ChildFiles

_IPC_PATH_LIMIT_BYTES = 107


@dataclass(frozen=True, slots=True)
class RunLayout:
    """Paths of a run; `folder` is absolute, so that daemons may be started from anywhere."""

    folder: Path

    @property
    def config(self) -> Path:
        """What every daemon of the run is started with."""
        return self.folder / "config.toml"

    @property
    def source(self) -> Path:
        """The user's own settings, before paths were filled in."""
        return self.folder / "launch.toml"

    @property
    def facts(self) -> Path:
        """What the launcher knows about the run, for the summary."""
        return self.folder / "launch.json"

    @property
    def settings_checked(self) -> Path:
        """Marker of the first phase: every daemon took its settings."""
        return self.folder / "phases" / "check settings.json"

    @property
    def engine_key(self) -> Path:
        """Key of this run's engine."""
        return self.folder / "engine.key"

    @property
    def demonstrations(self) -> Path:
        """Recorded demonstrations."""
        return self.folder / "warmstart" / "demonstrations.bin"

    @property
    def warm_start(self) -> Path:
        """The imitated policy, an ordinary Hugging Face folder."""
        return self.folder / "warmstart" / "model"

    def weights(self, policy_version: int) -> Path:
        """What the engines loaded as a policy version."""
        return self.folder / "weights" / f"v{policy_version:06d}"

    @property
    def dispatch_address(self) -> str:
        """The learner's socket file, or the word that asks for a port if its path would be too long."""
        path = self.folder / "dispatch.sock"
        return f"ipc://{path}" if len(os.fsencode(path)) <= _IPC_PATH_LIMIT_BYTES else ""

    def tasks(self, name: str) -> Path:
        """Task file of a set."""
        return self.folder / "tasks" / f"{name}.jsonl"

    def files(self, name: str) -> ChildFiles:
        """Output of a daemon or one-shot command."""
        return ChildFiles(
            stdout=self.folder / "logs" / f"{name}.out",
            stderr=self.folder / "logs" / f"{name}.log",
            ready=self.folder / "ready" / f"{name}.json",
        )


@contextmanager
def held(layout: RunLayout) -> Iterator[None]:
    """Make the run folder, readable by its owner alone, and keep other launchers out."""
    layout.folder.mkdir(parents=True, exist_ok=True)
    layout.folder.chmod(0o700)
    descriptor = os.open(layout.folder / "launcher.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"another launcher runs {layout.folder}; stop it, or choose another --run") from error
        yield
    finally:
        os.close(descriptor)
