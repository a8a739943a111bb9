"""What an env server says about itself, its environments and their tasks, as records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from longturn.codec import task_from_proto
from longturn.errors import WireError
from longturn.knobs import KnobKind
from longturn.records import Task
from longturn.v1 import environment_pb2, status_pb2

NONE = environment_pb2.DETERMINISM_NONE
EXACT = environment_pb2.DETERMINISM_EXACT
_KNOB_KINDS: Mapping[int, KnobKind] = {
    environment_pb2.KNOB_KIND_INT: "int",
    environment_pb2.KNOB_KIND_FLOAT: "float",
    environment_pb2.KNOB_KIND_BOOL: "bool",
    environment_pb2.KNOB_KIND_CHOICE: "choice",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """Who answers, and the limits that a client must keep."""

    server_id: str
    protocol_version: str
    package_version: str
    capabilities: tuple[str, ...]
    max_message_bytes: int
    max_episodes: int
    lease_s: float
    """Time without a call after which an episode is reaped; 0: never."""
    forbid_privileged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobInfo:
    """One setting of an environment."""

    kind: KnobKind
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    """Allowed strings of a choice."""
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLoad:
    """How busy a server is."""

    num_live: int
    """Episodes alive, of all clients, as of a few seconds ago."""
    is_serving: bool
    """False while it drains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentInfo:
    """What an environment offers. Fields as in environment.proto."""

    name: str
    version: str
    data_hash: str
    action_format: str
    max_turns: int
    score_min: float
    score_max: float
    splits: tuple[str, ...]
    is_reproducible: bool
    """False for DETERMINISM_NONE: equal starts may then look different."""
    is_exact: bool
    """True for DETERMINISM_EXACT: equal actions lead to equal texts, not only to equal state hashes."""
    is_forkable: bool
    """Whether `RemoteEpisode.fork` works."""
    has_oracle: bool
    has_progress: bool
    description: str
    licence: str
    knobs: Mapping[str, KnobInfo]
    """Its settings by name."""
    random_success_ceiling: float | None
    """Share of episodes that a random policy may win; None: not stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """One task as listed."""

    task: Task
    kind: str
    score_max: float | None


def server_info_from_proto(message: environment_pb2.GetServerInfoResponse) -> ServerInfo:
    """Build the record of a server."""
    limits = message.limits
    return ServerInfo(
        server_id=message.server_id,
        protocol_version=message.protocol_version,
        package_version=message.package_version,
        capabilities=tuple(message.capabilities),
        max_message_bytes=limits.max_message_bytes,
        max_episodes=limits.max_episodes,
        lease_s=limits.lease.ToTimedelta().total_seconds() if limits.HasField("lease") else 0.0,
        forbid_privileged=limits.forbid_privileged,
    )


def server_load_from_proto(message: status_pb2.GetStatusResponse) -> ServerLoad:
    """Build the record of a server's load from its status."""
    num_live = message.values.get("server/episode/num_live", 0.0)
    return ServerLoad(num_live=int(num_live), is_serving=message.phase == "serving")


def environment_from_proto(message: environment_pb2.EnvironmentInfo) -> EnvironmentInfo:
    """Build the record of an environment."""
    return EnvironmentInfo(
        name=message.name,
        version=message.version,
        data_hash=message.data_hash,
        action_format=message.action_format,
        max_turns=message.max_turns,
        score_min=message.score_min,
        score_max=message.score_max,
        splits=tuple(message.splits),
        is_reproducible=message.determinism != NONE,
        is_exact=message.determinism == EXACT,
        is_forkable=message.is_forkable,
        has_oracle=message.has_oracle,
        has_progress=message.has_progress,
        description=message.description,
        licence=message.licence,
        knobs={knob.name: _knob_from_proto(knob) for knob in message.knobs},
        random_success_ceiling=(message.random_success_ceiling if message.HasField("random_success_ceiling") else None),
    )


def _knob_from_proto(message: environment_pb2.KnobSpec) -> KnobInfo:
    kind = _KNOB_KINDS.get(message.kind)
    if kind is None:
        raise WireError(f"knob {message.name!r} has the unknown kind {message.kind}; use clients as new as the server")
    return KnobInfo(
        kind=kind,
        minimum=message.minimum if message.HasField("minimum") else None,
        maximum=message.maximum if message.HasField("maximum") else None,
        choices=tuple(message.choices),
        description=message.description,
    )


def task_info_from_proto(message: environment_pb2.TaskInfo) -> TaskInfo:
    """Build the record of a listed task."""
    return TaskInfo(
        task=task_from_proto(message.task),
        kind=message.kind,
        score_max=message.score_max if message.HasField("score_max") else None,
    )
