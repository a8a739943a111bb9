"""The command lines that the launcher runs: the only thing it knows about the planes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from longturn.config import spell_override
from longturn.launch.config import EvaluationConfig, TasksConfig, TaskSetConfig, WarmstartConfig
from longturn.launch.layout import RunLayout
from longturn.launch.supervisor import Facts

_LONGTURN = (sys.executable, "-m", "longturn")


class CommandLines:
    """Command lines of one run."""

    def __init__(self, layout: RunLayout, *, log_format: str = "pretty") -> None:
        self._layout = layout
        self._shared = ("--config", str(layout.config), "--log-format", log_format)

    def dry_runs(self) -> dict[str, Sequence[str]]:
        """Commands that only check the settings of each daemon."""
        imitate = ("learn", "--imitate", str(self._layout.demonstrations))
        commands = {
            "serve": ("serve",),
            "engine": ("engine",),
            "act": ("act",),
            "learn": ("learn",),
            "imitate": imitate,
        }
        return {name: (*_LONGTURN, *command, *self._shared, "--dry-run") for name, command in commands.items()}

    def serve(self, facts: Facts | None, num_starts: int) -> Sequence[str]:
        """The env server; a restarted one takes its old port again."""
        return (*self._daemon("serve", "env_server"), *_same_port("env_server", facts))

    def engine(self, model: Path, version: str, facts: Facts | None) -> Sequence[str]:
        """The engine, serving `model` as policy version `version`; a restarted one takes its old port again."""
        settings = (_set("engine.model_path", model), _set("engine.weight_version", version))
        return (
            *self._daemon("engine", "engine"),
            *(word for pair in settings for word in pair),
            *_same_port("engine", facts),
        )

    def learner(self, engine_urls: str) -> Sequence[str]:
        """The learner, with engines at these addresses, joined by commas; it goes on from its newest checkpoint."""
        key_file = str(self._layout.engine_key)
        engines = [{"url": url, "api_key_file": key_file} for url in engine_urls.split(",")]
        return (*self._daemon("learn", "learner"), *_set("learner.publish.engines", engines))

    def actors(self, server: str) -> Sequence[str]:
        """The actor pool."""
        return (*self._daemon("act", "actors"), "--server", server)

    def tasks(self, config: TasksConfig, tasks: TaskSetConfig, out: Path, server: str) -> Sequence[str]:
        """Write a set's task file."""
        knobs = [word for name, value in config.knobs.items() for word in ("--knob", f"{name}={value}")]
        mix = [word for part in tasks.mix for word in ("--mix", part.model_dump_json())]
        return (
            *(*_LONGTURN, "envs", "tasks", "--config", str(self._layout.config), "--server", server),
            *("--env", config.environment, "--split", tasks.split, *knobs, *mix, "--out", str(out)),
        )

    def prepare(self, tasks: Path, server: str, *, max_broken_share: float) -> Sequence[str]:
        """Have the server make whatever the tasks need."""
        return (
            *_LONGTURN,
            "envs",
            "prepare",
            "--config",
            str(self._layout.config),
            "--server",
            server,
            "--tasks",
            str(tasks),
            "--max-broken-share",
            f"{max_broken_share:g}",
        )

    def record(self, config: WarmstartConfig, server: str, *, seed: int, max_broken_share: float) -> Sequence[str]:
        """Record demonstrations."""
        settings = [
            word for name, value in config.settings.items() for word in ("--policy-set", spell_override(name, value))
        ]
        return (
            *(*_LONGTURN, "act", *self._shared, "--server", server, "--record", str(self._layout.demonstrations)),
            *("--tasks", str(self._layout.tasks("warmstart")), "--policy", config.policy, *settings),
            *("--num-episodes", str(config.num_episodes), "--max-turns", str(config.max_turns), "--seed", str(seed)),
            *("--max-broken-share", f"{max_broken_share:g}"),
        )

    def imitate(self, *, seed: int) -> Sequence[str]:
        """Imitate the demonstrations."""
        return (
            *(*_LONGTURN, "learn", *self._shared, "--imitate", str(self._layout.demonstrations)),
            *_set("imitate.seed", seed),
            *_set("imitate.out", self._layout.warm_start),
        )

    def evaluate(
        self, config: EvaluationConfig, panel: str, temperature: float, out: Path, addresses: Mapping[str, str]
    ) -> Sequence[str]:
        """Play a panel once and write the result to `out`."""
        return (
            *(*_LONGTURN, "eval", *self._shared, "--policy", addresses["engine"], "--server", addresses["env_server"]),
            *("--tasks", str(self._layout.tasks(panel)), "--limit", str(config.num_tasks)),
            *("--temperature", f"{temperature:g}", "--seed", str(config.seed), "--max-turns", str(config.max_turns)),
            *("--max-new-tokens", str(config.max_new_tokens), "--max-episode-tokens", str(config.max_episode_tokens)),
            *("--concurrency", str(config.concurrency), "--out", str(out), "--json"),
        )

    def _daemon(self, command: str, name: str) -> tuple[str, ...]:
        return (*_LONGTURN, command, *self._shared, "--ready-file", str(self._layout.files(name).ready))


def _set(name: str, value: object) -> tuple[str, str]:
    return "--set", spell_override(name, value)


def _same_port(table: str, facts: Facts | None) -> tuple[str, ...]:
    if facts is None:
        return ()
    port = str(facts["address"]).rpartition(":")[2]
    return _set(f"{table}.port", int(port))
