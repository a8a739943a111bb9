"""The shaped return: what the filter and the group statistics see. The episode return itself stays untouched."""

from dataclasses import dataclass

from learner.advantages.overlong import overlong_penalty
from longturn.records import Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlongOptions:
    """DAPO's soft limit on the tokens that the policy sampled in an episode."""

    scale: float
    """Taken off at the limit and beyond."""
    max_tokens: int
    """The limit."""
    soft_tokens: int
    """Width of the ramp below it."""

    def __post_init__(self) -> None:
        if self.scale < 0:
            raise ValueError("penalties are subtracted and must be >= 0")
        if not 0 < self.soft_tokens <= self.max_tokens:
            raise ValueError(f"need 0 < soft_tokens <= max_tokens, got {self.soft_tokens} and {self.max_tokens}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardOptions:
    invalid_action_penalty: float = 0.0
    """Taken off per turn whose action the environment refused."""
    format_penalty: float = 0.0
    """Taken off per turn whose completion lacks the required tags."""
    overlong: OverlongOptions | None = None
    """Taken off per trajectory whose completions come close to a limit; absent: nothing."""

    def __post_init__(self) -> None:
        if self.invalid_action_penalty < 0 or self.format_penalty < 0:
            raise ValueError("penalties are subtracted and must be >= 0")


def shaped_return(
    episode_return: float, *, num_invalid_turns: int, num_malformed_turns: int, options: RewardOptions
) -> float:
    """episode_return minus both penalties times their turns."""
    invalid = options.invalid_action_penalty * num_invalid_turns
    return episode_return - invalid - options.format_penalty * num_malformed_turns


def trajectory_return(trajectory: Trajectory, options: RewardOptions) -> float:
    """The shaped return of a trajectory, with the soft limit on its length if there is one."""
    shaped = shaped_return(
        trajectory.episode_return,
        num_invalid_turns=sum(not turn.action_valid for turn in trajectory.turns),
        num_malformed_turns=sum(not turn.format_valid for turn in trajectory.turns),
        options=options,
    )
    limit = options.overlong
    if limit is None:
        return shaped
    penalty = overlong_penalty(
        trajectory.num_completion_tokens, max_tokens=limit.max_tokens, soft_tokens=limit.soft_tokens
    )
    return shaped + limit.scale * penalty


def turn_penalty(turn: Turn, options: RewardOptions) -> float:
    """What one turn costs its trajectory."""
    invalid = options.invalid_action_penalty * (not turn.action_valid)
    return invalid + options.format_penalty * (not turn.format_valid)
