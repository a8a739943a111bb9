"""Settings of the environment server."""

from __future__ import annotations

import os
from typing import Annotated, Self

from annotated_types import Ge, Gt
from pydantic import Field, model_validator

from longturn.config import Config

Positive = Annotated[float, Gt(0.0)]
Count = Annotated[int, Ge(1)]

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class LimitsConfig(Config):
    """Times after which the server kills the worker that runs a call."""

    step_timeout_s: Positive = 60.0
    """A step that takes longer ends as FAILED(STEP_TIMEOUT)."""
    start_timeout_s: Positive = 120.0
    """A start that takes longer is refused with START_TIMEOUT."""
    prepare_timeout_s: Positive = 600.0
    """The same for a task's preparation, such as the generation of a game."""


class OwnLimitsConfig(Config):
    """Time limits of one environment; what is left out is as in `limits`."""

    step_timeout_s: Positive | None = None
    """In place of `limits.step_timeout_s`."""
    start_timeout_s: Positive | None = None
    """In place of `limits.start_timeout_s`."""
    prepare_timeout_s: Positive | None = None
    """In place of `limits.prepare_timeout_s`."""


class EnvServerConfig(Config):
    """The environment server."""

    host: str = "127.0.0.1"
    """Address to bind. Anything but loopback is refused without `insecure`."""
    port: Annotated[int, Ge(0)] = 50051
    """Port to bind; 0 chooses a free one."""
    insecure: bool = False
    """Serve without encryption off loopback. Whoever reaches the port may then play."""
    environments: tuple[str, ...] = ()
    """Names of installed environments, or import paths package.module:Class. Empty: every one that imports."""
    num_workers: Annotated[int, Ge(0)] = 0
    """Processes that play episodes; 0: one per core."""
    num_preparers: Count = 1
    """Processes that prepare tasks, so that steps never wait for the generation of a game."""
    threads_per_worker: Count = 64
    """Steps at once in one worker, for environments that say they are thread-safe."""
    limits: LimitsConfig = LimitsConfig()
    """Time limits of every environment."""
    limits_by_environment: dict[str, OwnLimitsConfig] = Field(default_factory=dict[str, OwnLimitsConfig])
    """Time limits that differ, by environment name."""
    lease_s: Positive = 600.0
    """An episode that gets no call for this long is reaped."""
    max_episode_s: Positive = 86_400.0
    """Absolute life of an episode."""
    final_grace_s: Positive = 300.0
    """How long a finished episode still answers repeated calls."""
    max_episodes: Count = 16_384
    """Episodes alive at once."""
    max_episodes_per_client: Annotated[int, Ge(0)] = 0
    """Episodes alive at once per client id; 0: no limit of its own."""
    max_requests_in_flight: Count = 65_536
    """Starts and steps at once."""
    max_message_bytes: Annotated[int, Ge(65_536)] = 16 * 1024 * 1024
    """Largest message either way; the client's setting must match."""
    forbid_privileged: bool = False
    """Refuse progress and oracle_action."""
    recycle_episodes: Annotated[int, Ge(0)] = 20_000
    """A worker that has started this many episodes is replaced; 0: never."""
    recycle_rss_bytes: Annotated[int, Ge(0)] = 4 * 1024**3
    """A worker whose resident memory exceeds this is replaced; 0: never."""
    recycle_grace_s: Positive = 30.0
    """How long a worker that is being replaced keeps its episodes before they are rebuilt elsewhere."""
    recycle_limit_s: Positive = 3600.0
    """How long it keeps episodes that cannot be rebuilt."""
    worker_ready_timeout_s: Positive = 120.0
    """A worker that has not become ready by then is killed."""
    worker_wait_s: Positive = 180.0
    """How long a call waits for a worker to become ready."""
    drain_timeout_s: Positive = 10.0
    """On SIGTERM: how long steps in flight may take."""
    keepalive_s: Annotated[float, Ge(0.0)] = 300.0
    """HTTP/2 pings to silent clients; 0: none, for proxies that swallow them."""
    reflection: bool = True
    """Serve gRPC reflection."""
    metrics_port: Annotated[int, Ge(0)] | None = None
    """Port of `/metrics` on loopback; 0 chooses one; left out: none."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.host not in LOOPBACK and not self.insecure:
            raise ValueError(
                f"host {self.host} is not loopback and the connection is not encrypted; add --insecure"
                " (env_server.insecure = true) to serve it all the same, or bind 127.0.0.1"
            )
        return self

    @property
    def num_playing_workers(self) -> int:
        """Number of workers that play episodes."""
        return self.num_workers or len(os.sched_getaffinity(0))

    def limits_of(self, environment: str) -> LimitsConfig:
        """Time limits of one environment."""
        own = self.limits_by_environment.get(environment, OwnLimitsConfig())
        return self.limits.model_copy(update=own.model_dump(exclude_none=True))
