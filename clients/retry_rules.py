"""What to do about an episode that gave no trajectory: the one answer for groups and panels."""

from __future__ import annotations

from longturn.errors import CallRefusedError, LongturnError, UnreachableError

_TRANSIENT_REFUSALS = frozenset(
    {"WORKER_CRASHED", "ENVIRONMENT_BROKEN", "START_TIMEOUT", "NO_WORKER", "SHUTTING_DOWN", "TOO_MANY_EPISODES"}
)
"""Refusals of the env server that a fresh episode may escape; so may one that names a time to try again."""
_LASTING_REASONS = frozenset({"NO_ORACLE", "ENGINE_REFUSED"})
"""What a policy meets again in every episode of the task."""
_COMMON_REASONS = frozenset({"BAD_KNOB", "NO_ORACLE", "ENGINE_REFUSED", "NO_ENGINE"})


def is_transient(error: LongturnError) -> bool:
    """Whether a fresh episode of the same task may do better: a group and a panel play one only then."""
    if isinstance(error, CallRefusedError):
        return error.retry_after_s is not None or error.reason in _TRANSIENT_REFUSALS
    return error.reason not in _LASTING_REASONS


def meets_every_task(error: LongturnError) -> bool:
    """Whether the other tasks of a list would meet the same, so that playing them makes no sense."""
    return isinstance(error, UnreachableError) or error.reason in _COMMON_REASONS
