"""The daemons of a run by name: start them when a phase needs them, reuse them in the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from longturn.errors import UnreachableError
from longturn.launch.command_lines import CommandLines
from longturn.launch.config import RunConfig
from longturn.launch.layout import RunLayout
from longturn.launch.outside_engines import OutsideEngines
from longturn.launch.supervisor import DaemonSpec, Facts, Supervisor
from longturn.status import get_status
from longturn.v1 import status_pb2

_LOOK_TIMEOUT_S = 1.0

Command = Callable[[Facts | None, int], Sequence[str]]


class Daemons:
    """Env server, engine, learner and actors of one run."""

    def __init__(
        self,
        supervisor: Supervisor,
        commands: CommandLines,
        layout: RunLayout,
        config: RunConfig,
        *,
        say: Callable[[str], None],
    ) -> None:
        self._supervisor = supervisor
        self._commands = commands
        self._layout = layout
        self._config = config
        self._addresses: dict[str, str] = {}
        self._served_model: Path | None = None
        self._outside: OutsideEngines | None = None
        if config.engine_urls:
            key = layout.engine_key.read_text(encoding="utf-8")
            self._outside = OutsideEngines(
                config.engine_urls, key, wait_s=config.ready_timeout_s, tick=supervisor.tick, say=say
            )

    def env_server(self) -> str:
        """Address of the env server, started if it does not run."""
        if not self._supervisor.is_running("env_server"):
            facts = self._supervisor.start_and_wait(self._spec("env_server", self._commands.serve))
            self._addresses["env_server"] = str(facts["address"])
        return self._addresses["env_server"]

    def engine(self, model: Path, version: str) -> str:
        """Address of an engine that serves `model` as `version`; one that serves another model is started anew.

        Engines started elsewhere load it; their addresses are joined by commas.
        """
        if self._outside is not None:
            self._outside.load(model, version)
            return ",".join(self._outside.urls)
        if self._supervisor.is_running("engine") and self._served_model == model:
            return self._addresses["engine"]
        self._supervisor.stop("engine")

        def command(facts: Facts | None, num_starts: int) -> Sequence[str]:
            return self._commands.engine(model, version, facts)

        facts = self._supervisor.start_and_wait(self._spec("engine", command))
        self._addresses["engine"], self._served_model = str(facts["url"]), model
        return self._addresses["engine"]

    def confirm_engine(self, version: str) -> None:
        """Raise OutsideEngineError if an engine that is not watched from here lost the version."""
        if self._outside is not None:
            self._outside.confirm(version)

    def weights_changed(self) -> None:
        """Say that the engine no longer serves what it was started with."""
        self._served_model = None

    def start_training(self, engine_url: str) -> None:
        """Start learner and actors and wait until both serve."""
        server = self.env_server()
        commands = {"learner": self._commands.learner(engine_url), "actors": self._commands.actors(server)}
        for name in commands:
            spec = self._spec(name, lambda facts, num_starts, name=name: commands[name], ends_by_itself=True)
            self._supervisor.start_and_wait(spec)

    def is_learning(self) -> bool:
        """Whether the learner has not ended yet."""
        return self._supervisor.is_running("learner")

    def stop(self, *names: str) -> None:
        """End these daemons."""
        self._supervisor.stop(*names)

    def addresses(self) -> Mapping[str, str]:
        """Addresses of the running env server and engine."""
        return self._addresses

    def look(self, name: str) -> status_pb2.GetStatusResponse | None:
        """A daemon's status; None while it does not answer, which a restart explains."""
        facts = self._supervisor.facts(name)
        if facts is None:
            return None
        try:
            return get_status(str(facts["status_address"]), timeout_s=_LOOK_TIMEOUT_S)
        except UnreachableError:
            return None

    def _spec(self, name: str, command: Command, *, ends_by_itself: bool = False) -> DaemonSpec:
        return DaemonSpec(
            name=name,
            command=command,
            files=self._layout.files(name),
            ready_timeout_s=self._config.ready_timeout_s,
            max_restarts=self._config.max_restarts,
            ends_by_itself=ends_by_itself,
        )


class Every:
    """Says at most once per interval that it is time."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next_s = 0.0

    def is_due(self) -> bool:
        """Whether the interval has passed since it was last due."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self._interval_s
        return True
