"""Which time limit applies to a call, and the setting that a message about it names."""

from __future__ import annotations

from dataclasses import dataclass

from env_server.config import EnvServerConfig
from env_server.hop import Phase

FIELDS: dict[int, str] = {
    Phase.START: "start_timeout_s",
    Phase.STEP: "step_timeout_s",
    Phase.PREPARE: "prepare_timeout_s",
}


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """A time in seconds and the full name of the setting that it comes from."""

    time_s: float
    setting: str


def time_limit(config: EnvServerConfig, environment: str, phase: int) -> TimeLimit:
    """The limit of one environment's calls; a phase that a worker was just writing counts as a step."""
    name = FIELDS.get(phase, "step_timeout_s")
    own = config.limits_by_environment.get(environment)
    is_own = own is not None and getattr(own, name) is not None
    table = f"limits_by_environment.{environment}" if is_own else "limits"
    return TimeLimit(getattr(config.limits_of(environment), name), f"env_server.{table}.{name}")
