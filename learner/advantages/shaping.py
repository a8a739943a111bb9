"""The shaped return: what the filter and the group statistics see. The episode return itself stays untouched."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardOptions:
    invalid_action_penalty: float = 0.0
    """Taken off per turn whose action the environment refused."""
    format_penalty: float = 0.0
    """Taken off per turn whose completion lacks the required tags."""

    def __post_init__(self) -> None:
        if self.invalid_action_penalty < 0 or self.format_penalty < 0:
            raise ValueError("penalties are subtracted and must be >= 0")


def shaped_return(
    episode_return: float, *, num_invalid_turns: int, num_malformed_turns: int, options: RewardOptions
) -> float:
    """episode_return minus both penalties times their turns."""
    invalid = options.invalid_action_penalty * num_invalid_turns
    return episode_return - invalid - options.format_penalty * num_malformed_turns
