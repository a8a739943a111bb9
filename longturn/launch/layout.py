"""Where everything of a run lies."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from longturn.addresses import IPC_PATH_LIMIT_BYTES
from longturn.launch.child import ChildFiles
from longturn.launch.phases import finished_phases, phase_marker
from longturn.run_folder import held_folder

CHECK_SETTINGS = "check settings"
"""The first phase."""


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
    def phases(self) -> Path:
        """Markers of finished phases."""
        return self.folder / "phases"

    @property
    def settings_checked(self) -> Path:
        """Marker of the first phase: every daemon took its settings."""
        return phase_marker(self.phases, CHECK_SETTINGS)

    @property
    def is_begun(self) -> bool:
        """Whether any phase was finished, so that going on has something to go on with."""
        return bool(finished_phases(self.phases))

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
        return f"ipc://{path}" if len(os.fsencode(path)) <= IPC_PATH_LIMIT_BYTES else ""

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


def held(layout: RunLayout) -> AbstractContextManager[None]:
    """Make the run folder, readable by its owner alone, and keep other launchers out."""
    refusal = f"another launcher runs {layout.folder}; stop it, or choose another --run"
    return held_folder(layout.folder, "launcher.lock", refusal=refusal)
