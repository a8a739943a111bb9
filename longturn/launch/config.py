"""Settings of the launcher itself: tables `[run]`, `[tasks]`, `[warmstart]` and `[evaluation]` of a run's TOML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from longturn.broken_share import DEFAULT_MAX_BROKEN_SHARE
from longturn.config import Config
from longturn.task_mix import TaskMixConfig

EngineUrl = Annotated[str, Field(pattern="^https?://[^,]+$")]


class RunConfig(Config):
    """Table `[run]`: where the run lives and how its daemons are watched."""

    folder: Path = Path("runs")
    """Runs lie below this folder."""
    name: str = Field(default="quickstart", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)
    """Folder of this run."""
    seed: int = Field(default=0, ge=0)
    """Fixes tasks' order, demonstrations, weights and samples; every daemon's seed follows from it."""
    max_restarts: int = Field(default=5, ge=0)
    """How often each daemon is started again after it crashed; one that ends with an error that has a name ends the
    run."""
    ready_timeout_s: float = Field(default=180.0, gt=0)
    """How long a daemon may take to become ready."""
    grace_s: float = Field(default=20.0, gt=0)
    """How long a daemon may take to end; then it is killed."""
    engine_urls: tuple[EngineUrl, ...] = ()
    """Engines that are started elsewhere, such as SGLang servers; none: the launcher starts the one of `[engine]`. They
    must see the run's folder."""
    engine_api_key_file: Path | None = None
    """File with the key of the engines in `engine_urls`; absent: they ask for none."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.engine_api_key_file is not None and not self.engine_urls:
            raise ValueError("run.engine_api_key_file belongs to run.engine_urls, which is empty")
        return self


class TaskSetConfig(Config):
    """A task file, made once per run."""

    split: str
    """Split of the environment: train, valid or test."""
    mix: tuple[TaskMixConfig, ...] = Field(min_length=1)
    """What it holds, kind after kind."""
    prepare: bool = True
    """Whether everything that its episodes need (generated games) is made before the run goes on."""


class TasksConfig(Config):
    """Table `[tasks]`: what is trained on, and the fixed panels that never are."""

    environment: str = "textworld"
    """Name of the environment."""
    knobs: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Knobs of every episode, such as {admissible_actions = true}; they are written into the task files."""
    warmstart: TaskSetConfig
    """Demonstrations are recorded on these."""
    train: TaskSetConfig
    """The learner's slots take these."""
    valid: TaskSetConfig
    """Panel for tuning, and for the curve during training."""
    test: TaskSetConfig
    """Panel for the table before and after; nothing is tuned on it."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("valid", "test"):
            if self.sets()[name].split in (self.train.split, self.warmstart.split):
                raise ValueError(f"{name}.split must differ from train.split: that panel is never trained on")
        return self

    def sets(self) -> dict[str, TaskSetConfig]:
        """All sets by name, in the order in which they are needed."""
        return {"warmstart": self.warmstart, "train": self.train, "valid": self.valid, "test": self.test}


class WarmstartConfig(Config):
    """Table `[warmstart]`: demonstrations, and the gate after imitation."""

    policy: str = "oracle"
    """Who demonstrates: a client policy of `longturn act --record`."""
    num_episodes: int = Field(default=320, ge=1)
    """Demonstrations; the task set is walked through as often as needed."""
    max_turns: int = Field(default=0, ge=0)
    """Turn limit of a demonstration; 0: the environment's."""
    settings: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Further settings of the demonstrator, passed on as they are."""
    gate_temperature: float = Field(default=1.0, ge=0)
    """Temperature at which the gate is checked."""
    gate_min_success: float = Field(default=0.02, ge=0, le=1)
    """Least success of the warm start on the training tasks: a policy that never succeeds has nothing to learn from."""
    gate_max_success: float = Field(default=0.95, ge=0, le=1)
    """Highest success of the warm start on the training tasks: above it there is nothing left to learn."""


class EvaluationConfig(Config):
    """Table `[evaluation]`: plays of the test panel by the warm start and by the last version."""

    num_tasks: int = Field(default=128, ge=1)
    """First lines of the test panel, one episode each; the gate plays as many of the training tasks."""
    max_turns: int = Field(default=0, ge=0)
    """Turn limit; 0: the environment's."""
    max_new_tokens: int = Field(default=64, ge=1)
    """Most tokens of a completion."""
    max_episode_tokens: int = Field(default=4096, ge=1)
    """Most tokens of an episode."""
    concurrency: int = Field(default=64, ge=1)
    """Episodes played at once."""
    seed: int = Field(default=1, ge=0)
    """Seed of the samples, the same before and after."""
    max_broken_share: float = Field(default=DEFAULT_MAX_BROKEN_SHARE, ge=0, lt=1)
    """Largest share of a panel's games that may break through no fault of the policy. They are no result: they enter no
    mean, and the tables show their number and reasons. Above it the play does not count and the run ends. As large a
    share of the games may break while they are prepared or demonstrations are recorded; they are left out."""
    other_temperatures: tuple[float, ...] = ()
    """Temperatures, besides 1 and 0, at which the warm start is evaluated too."""
