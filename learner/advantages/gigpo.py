"""GiGPO (Feng et al. 2025): the group advantage of the episode plus one among turns that start from one observation.

K turns, J trajectories. Statistics of the episode part are over trajectories; the released code's variant, over turn
rows, is `episode_over_turns`, where long trajectories count more.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from torch import Tensor

from learner.advantages.group_moments import group_sizes
from learner.advantages.standardise import index_of, standardise
from learner.advantages.turn_inputs import TurnInputs
from learner.layout import TokenLayout
from longturn.errors import ConfigError
from longturn.records import Trajectory


def discounted_returns(rewards: Sequence[float], *, discount: float = 0.95) -> tuple[float, ...]:
    """Return of every turn of one trajectory from its turn rewards."""
    returns: list[float] = []
    value = 0.0
    for reward in reversed(rewards):
        value = reward + discount * value
        returns.append(value)
    return tuple(reversed(returns))


def anchor_index(anchors: Sequence[Hashable], group_index_K: Tensor) -> Tensor:
    """Number of each turn's anchor: equal where group and what stands before the turn are equal."""
    return index_of(list(zip(group_index_K.tolist(), anchors, strict=True)))


def gigpo(
    returns_J: Tensor,
    turn_returns_K: Tensor,
    anchor_index_K: Tensor,
    layout: TokenLayout,
    *,
    omega: float = 1.0,
    divide_by_std: bool = False,
    episode_over_turns: bool = False,
) -> Tensor:
    """A_episode + omega * A_step for each of the K turns."""
    if episode_over_turns:
        rows_K = returns_J[layout.trajectory_index_K]
        episode_K = standardise(rows_K, layout.group_index_K, divide_by_std=divide_by_std)
    else:
        episode_J = standardise(returns_J, layout.group_index_J, divide_by_std=divide_by_std)
        episode_K = episode_J[layout.trajectory_index_K]
    # A turn alone at its anchor has nothing to be compared with, unlike an episode alone in its group.
    is_alone_K = group_sizes(anchor_index_K, turn_returns_K) == 1
    step_K = standardise(turn_returns_K, anchor_index_K, divide_by_std=divide_by_std).masked_fill(is_alone_K, 0.0)
    return episode_K + omega * step_K


def observations_before(trajectory: Trajectory) -> list[str]:
    """What the policy saw last before each turn."""
    return [trajectory.initial_observation, *(turn.observation for turn in trajectory.turns)][:-1]


def states_before(trajectory: Trajectory) -> list[bytes]:
    """Hash of the environment's state before each turn; ConfigError if the environment gives none."""
    states = [trajectory.initial_state_hash, *(turn.state_hash for turn in trajectory.turns)][:-1]
    if not all(states):
        name = trajectory.task.environment
        raise ConfigError(f"learner.advantage.gigpo_anchor: {name} gives no state hashes; set it to observation")
    return states


@dataclass(frozen=True, slots=True, kw_only=True)
class Gigpo:
    """The estimator on trajectories: turn rewards carry the penalties of their own turn."""

    omega: float = 1.0
    """Weight of the step part."""
    discount: float = 0.95
    """Discount of later turn rewards in the step part."""
    divide_by_std: bool = False
    """True divides both parts by their standard deviation."""
    episode_over_turns: bool = False
    """True takes the episode part's statistics over turn rows, as the released code does."""
    anchor: str = "observation"
    """observation: turns compare if the same text stands before them; state: if the state's hash does."""

    def __call__(self, inputs: TurnInputs) -> Tensor:
        """One advantage per turn."""
        returns = [
            list(discounted_returns(self._rewards(trajectory, penalties), discount=self.discount))
            for trajectory, penalties in zip(inputs.trajectories, inputs.penalties, strict=True)
        ]
        before = states_before if self.anchor == "state" else observations_before
        anchors: list[Hashable] = [anchor for trajectory in inputs.trajectories for anchor in before(trajectory)]
        return gigpo(
            inputs.returns_J,
            inputs.per_turn(returns),
            anchor_index(anchors, inputs.layout.group_index_K),
            inputs.layout,
            omega=self.omega,
            divide_by_std=self.divide_by_std,
            episode_over_turns=self.episode_over_turns,
        )

    def _rewards(self, trajectory: Trajectory, penalties: list[float]) -> list[float]:
        return [turn.reward - penalty for turn, penalty in zip(trajectory.turns, penalties, strict=True)]
