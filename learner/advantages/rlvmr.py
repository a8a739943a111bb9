"""RLVMR (arXiv 2507.22844): the outcome's advantage plus one among turns of the same task that reason in the same way.

    released   A = A_outcome + weight * A_meta,           A_outcome over turn rows, sample std
    paper      A = alpha * A_outcome + (1 - alpha) * A_meta,   A_outcome over trajectories, population std

A_meta compares meta rewards within (group, tag), in the paper's main text within a tag over the whole batch. J
trajectories, K turns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from learner.advantages.meta_rewards import MetaReward, MetaTurn, RuleSet, repaired
from learner.advantages.standardise import index_of, standardise
from learner.advantages.turn_inputs import TurnInputs
from learner.layout import TokenLayout
from longturn.reasoning_tags import Parser, strict
from longturn.records import Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class RlvmrOptions:
    weight: float = 1.0
    """Weight of the meta part in the released sum."""
    alpha: float | None = None
    """Share of the outcome in the paper's mix; absent: the released sum."""
    divide_by_std: bool = True
    """False is the released mode mean_norm."""
    tags_over_batch: bool = False
    """True compares tags over the whole batch, False within a group."""
    meta_format_penalty: float = 0.0
    """Taken off the meta reward of a malformed turn (the paper's r_format); the released code takes it off outcomes."""

    def __post_init__(self) -> None:
        if self.weight < 0 or self.meta_format_penalty < 0:
            raise ValueError("weight and meta_format_penalty must be >= 0")
        if self.alpha is not None and not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be in [0, 1], got {self.alpha}")

    @property
    def ddof(self) -> int:
        """Of every standard deviation: 0 in the paper's mix, 1 in the released sum."""
        return 1 if self.alpha is None else 0


def rlvmr(
    outcomes_K: Tensor,
    returns_J: Tensor,
    meta_rewards_K: Tensor,
    tags: Sequence[str],
    layout: TokenLayout,
    options: RlvmrOptions,
) -> Tensor:
    """Advantage of every turn. `outcomes_K` is the trajectory's return minus the turn's own penalties."""
    meta_K = meta_advantages(meta_rewards_K, tags, layout, options)
    if options.alpha is None:
        outcome_K = standardise(outcomes_K, layout.group_index_K, divide_by_std=options.divide_by_std)
        return outcome_K + options.weight * meta_K
    outcome_J = standardise(returns_J, layout.group_index_J, ddof=0, divide_by_std=options.divide_by_std)
    return options.alpha * outcome_J[layout.trajectory_index_K] + (1 - options.alpha) * meta_K


def meta_advantages(meta_rewards_K: Tensor, tags: Sequence[str], layout: TokenLayout, options: RlvmrOptions) -> Tensor:
    """Meta rewards relative to turns of the same tag."""
    groups = [0] * len(tags) if options.tags_over_batch else layout.group_index_K.tolist()
    index_K = index_of(list(zip(groups, tags, strict=True)))
    return standardise(meta_rewards_K, index_K, ddof=options.ddof, divide_by_std=options.divide_by_std)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rlvmr:
    """The estimator on trajectories: decodes each completion, parses it and pays its meta reward.

    Success is the environment's own goal test. An action counts as admissible if the environment could use it.
    """

    text_of: Callable[[Sequence[int]], str]
    """Decodes completion ids, tags included."""
    rules: RuleSet = repaired
    parser: Parser = strict
    options: RlvmrOptions = RlvmrOptions()

    def __call__(self, inputs: TurnInputs) -> Tensor:
        """One advantage per turn."""
        turns = [self.meta_turns(trajectory) for trajectory in inputs.trajectories]
        paid = [
            self.rules(own, float(trajectory.success))
            for own, trajectory in zip(turns, inputs.trajectories, strict=True)
        ]
        outcomes = [
            [trajectory.episode_return - penalty for penalty in penalties]
            for trajectory, penalties in zip(inputs.trajectories, inputs.penalties, strict=True)
        ]
        return rlvmr(
            inputs.per_turn(outcomes),
            inputs.returns_J,
            inputs.per_turn([self._rewards(*pair) for pair in zip(turns, paid, strict=True)]),
            [reward.tag for rewards in paid for reward in rewards],
            inputs.layout,
            self.options,
        )

    def meta_turns(self, trajectory: Trajectory) -> list[MetaTurn]:
        """The trajectory's turns as the rules see them."""
        before: Sequence[bytes | str] = [
            trajectory.initial_state_hash or trajectory.initial_observation,
            *(_state_after(turn) for turn in trajectory.turns),
        ]
        return [self._meta_turn(turn, before[index], before[index + 1]) for index, turn in enumerate(trajectory.turns)]

    def _meta_turn(self, turn: Turn, state: bytes | str, next_state: bytes | str) -> MetaTurn:
        # What the actor added to close the turn is not what the policy said.
        output = self.text_of(turn.completion_ids[: len(turn.completion_ids) - turn.num_synthetic_tokens])
        parsed = self.parser(output)
        return MetaTurn(
            output=output,
            action=parsed.action,
            format_valid=parsed.format_valid,
            is_available=turn.action_valid,
            state=state,
            next_state=next_state,
        )

    def _rewards(self, turns: Sequence[MetaTurn], paid: Sequence[MetaReward]) -> list[float]:
        penalty = self.options.meta_format_penalty
        return [reward.reward - penalty * (not turn.format_valid) for turn, reward in zip(turns, paid, strict=True)]


def _state_after(turn: Turn) -> bytes | str:
    return turn.state_hash or turn.observation
