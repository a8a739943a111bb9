"""Settings of the environment server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Self

from annotated_types import Ge, Gt, Le
from pydantic import Field, model_validator

from longturn.addresses import is_loopback
from longturn.config import Config

Positive = Annotated[float, Gt(0.0)]
Count = Annotated[int, Ge(1)]


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


class TlsConfig(Config):
    """Encryption. Files are PEM and may be replaced while the server runs."""

    certificate: Path | None = None
    """The server's certificate, followed by its chain; with it the port speaks TLS only."""
    key: Path | None = None
    """The certificate's private key."""
    client_ca: Path | None = None
    """Demand client certificates that this authority signed. Their common name counts in limits and logs."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("tls.certificate and tls.key belong together; set both or neither")
        if self.client_ca is not None and self.certificate is None:
            raise ValueError("tls.client_ca needs tls.certificate and tls.key")
        return self


class EnvServerConfig(Config):
    """The environment server."""

    host: str = "127.0.0.1"
    """Address to bind. Off loopback TLS is demanded, and a bearer token or client certificates, unless `insecure`."""
    port: Annotated[int, Ge(0), Le(65535)] = 50051
    """Port to bind; 0 chooses a free one."""
    insecure: bool = False
    """Serve off loopback without encryption, or without asking who calls. Tokens are checked if they are set."""
    tls: TlsConfig = TlsConfig()
    """Encryption and client certificates."""
    token_file: Path | None = None
    """File of bearer tokens, one a line: `TOKEN` or `NAME TOKEN`, # for comments. Read again when it changes."""
    token_variable: str = ""
    """Environment variable that holds a bearer token; empty: none."""
    state_dir: Path | None = None
    """Folder for the journals of all episodes, which then survive the end of the server; left out: none."""
    insecure_sandbox: bool = False
    """Run the programs of the code environment even where the machine cannot shut them in. They can then do whatever
    the server's user can."""
    environments: tuple[str, ...] = ()
    """Names of installed environments, or import paths package.module:Class. Empty: every one that imports, without
    `faulty`, which is for tests."""
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
    hibernate_idle_s: Annotated[float, Ge(0.0)] = 300.0
    """An episode without a step for this long frees its worker memory; its next step wakes it by replay. 0: never."""
    max_awake: Annotated[int, Ge(0)] = 0
    """Episodes that hold worker memory at once; beyond that the idlest are put to sleep. 0: no limit of its own."""
    final_grace_s: Positive = 300.0
    """How long a finished episode still answers repeated calls."""
    max_episodes: Count = 16_384
    """Episodes alive at once."""
    max_episodes_per_client: Annotated[int, Ge(0)] = 0
    """Episodes alive at once per client; 0: no limit of its own. A client is the name of its certificate or of its
    token, else the client_id that it gives itself."""
    max_requests_in_flight: Count = 65_536
    """Starts and steps at once."""
    max_rate_per_client: Annotated[float, Ge(0.0)] = 0.0
    """Starts and steps per second and client; what a second brings may come at once. 0: no limit."""
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
    channelz: bool = False
    """Serve channelz: what gRPC knows of its connections. Needs the extra `channelz`."""
    traces: bool = False
    """Send OpenTelemetry traces of the unary calls over OTLP; where to, the OTEL_ variables say. Needs the extra
    `traces`."""
    metrics_port: Annotated[int, Ge(0), Le(65535)] | None = None
    """Port of `/metrics` on loopback; 0 chooses one; left out: none."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if is_loopback(self.host) or self.insecure:
            return self
        if self.tls.certificate is None:
            raise ValueError(
                f"host {self.host} is not loopback and the connection is not encrypted; set env_server.tls.certificate"
                " and .key, or add --insecure (env_server.insecure = true) to serve it all the same, or bind 127.0.0.1"
            )
        if self.tls.client_ca is None and self.token_file is None and not self.token_variable:
            raise ValueError(
                f"host {self.host} is not loopback and nobody is asked who they are; set env_server.token_file,"
                " .token_variable or .tls.client_ca, or add --insecure (env_server.insecure = true)"
            )
        return self

    @property
    def is_guarded(self) -> bool:
        """Whether callers need TLS or a token."""
        return self.tls.certificate is not None or self.token_file is not None or bool(self.token_variable)

    @property
    def num_playing_workers(self) -> int:
        """Number of workers that play episodes."""
        return self.num_workers or len(os.sched_getaffinity(0))

    def limits_of(self, environment: str) -> LimitsConfig:
        """Time limits of one environment."""
        own = self.limits_by_environment.get(environment, OwnLimitsConfig())
        return self.limits.model_copy(update=own.model_dump(exclude_none=True))
