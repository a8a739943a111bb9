"""Errors that cross module boundaries.

    LongturnError
    ├── ConfigError            a setting is wrong; the message names it
    ├── WireError              a message is malformed
    ├── UnreachableError       a peer did not answer within its budget; names address and command
    ├── EpisodeError           this episode is over through no fault of the policy
    │   ├── EpisodeLostError   the server no longer has it and could not rebuild it
    │   ├── EpisodeFailedError its environment broke
    │   └── EpisodeMovedError  another stream owns it now
    ├── CallRefusedError       the peer refused a call; reason, metadata and retry time as it sent them
    └── PolicyError            the engine could not complete a turn

Every error carries a `reason`, a constant in upper case that logs, counters and records use.
"""

from __future__ import annotations

from collections.abc import Mapping


class LongturnError(Exception):
    """Base of all errors that a user of Longturn may meet."""

    reason: str = "LONGTURN_ERROR"

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason


class ConfigError(LongturnError):
    """A setting is wrong; the message names the setting and what it accepts."""

    reason = "BAD_CONFIG"


class WireError(LongturnError):
    """A message does not say what its schema promises."""

    reason = "MALFORMED_MESSAGE"


class UnreachableError(LongturnError):
    """A peer did not answer within its budget; the message names the address and the command that starts it."""

    reason = "UNREACHABLE"


class EpisodeError(LongturnError):
    """This episode is over through no fault of the policy. A lost episode is data, not a crash."""

    reason = "EPISODE_ERROR"


class EpisodeLostError(EpisodeError):
    """The server no longer has the episode and could not rebuild it."""

    reason = "EPISODE_LOST"


class EpisodeFailedError(EpisodeError):
    """The episode's environment broke."""

    reason = "EPISODE_FAILED"


class EpisodeMovedError(EpisodeError):
    """Another stream attached to the episode."""

    reason = "MOVED"


class CallRefusedError(LongturnError):
    """A peer refused a call."""

    reason = "REFUSED"

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        metadata: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, reason=reason)
        self.metadata: Mapping[str, str] = dict(metadata or {})
        self.retry_after_s = retry_after_s


class PolicyError(LongturnError):
    """The engine could not complete a turn."""

    reason = "POLICY_ERROR"
