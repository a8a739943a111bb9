"""Advantages from a critic's values, one estimator per level: tokens, turns, or tokens within turns.

An estimator sees one episode at a time and only its trained tokens, turn by turn, so observation tokens are skipped by
construction and turns are told apart by their number, never by a reward that happens to be zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from learner.advantages.gae import gae, two_level_gae

Turns = tuple[tuple[float, ...], ...]
"""One number per trained token, turn by turn; no turn is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GaeOptions:
    """Discounts of the estimators; each says which it reads."""

    discount: float = 1.0
    """Per step of the level: per token, or per turn under turn_gae."""
    smoothing: float = 1.0
    """Lambda."""
    turn_discount: float = 0.95
    """bi_level_gae: per turn."""

    def __post_init__(self) -> None:
        for name in ("discount", "smoothing", "turn_discount"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuedEpisode:
    """Rewards and values of an episode's trained tokens; `bootstrap` is the value after its last token."""

    rewards: Turns
    values: Turns
    bootstrap: float = 0.0

    def __post_init__(self) -> None:
        if [len(turn) for turn in self.rewards] != [len(turn) for turn in self.values]:
            raise ValueError("rewards and values of an episode differ in shape")
        if not all(self.values):
            raise ValueError("a turn without trained tokens has no values; leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeEstimate:
    """One number per trained token; a target is absent where the critic is not asked for a value."""

    advantages: tuple[float, ...]
    targets: tuple[float | None, ...]


ValueAdvantage = Callable[[ValuedEpisode, GaeOptions], EpisodeEstimate]


def token_gae(episode: ValuedEpisode, options: GaeOptions) -> EpisodeEstimate:
    """Every sampled token is a step."""
    values = _flat(episode.values)
    advantages = gae(
        _flat(episode.rewards),
        values,
        discount=options.discount,
        smoothing=options.smoothing,
        bootstrap=episode.bootstrap,
    )
    return EpisodeEstimate(advantages=advantages, targets=_sums(advantages, values))


def turn_gae(episode: ValuedEpisode, options: GaeOptions) -> EpisodeEstimate:
    """Every turn is a step, valued before its first token; all its tokens share its advantage."""
    values = [turn[0] for turn in episode.values]
    advantages = gae(
        [sum(turn) for turn in episode.rewards],
        values,
        discount=options.discount,
        smoothing=options.smoothing,
        bootstrap=episode.bootstrap,
    )
    targets: list[float | None] = []
    spread: list[float] = []
    for turn, advantage, value in zip(episode.values, advantages, values, strict=True):
        spread.extend([advantage] * len(turn))
        targets.extend([advantage + value, *[None] * (len(turn) - 1)])
    return EpisodeEstimate(advantages=tuple(spread), targets=tuple(targets))


def bi_level_gae(episode: ValuedEpisode, options: GaeOptions) -> EpisodeEstimate:
    """RAGEN's two levels: over turns with `turn_discount`, then over the tokens of each turn."""
    advantages = two_level_gae(
        [sum(turn) for turn in episode.rewards],
        episode.values,
        turn_discount=options.turn_discount,
        discount=options.discount,
        smoothing=options.smoothing,
        bootstrap=episode.bootstrap,
    )
    flat = _flat(advantages)
    return EpisodeEstimate(advantages=flat, targets=_sums(flat, _flat(episode.values)))


VALUE_ADVANTAGES: Mapping[str, ValueAdvantage] = {
    "gae": token_gae,
    "turn_gae": turn_gae,
    "bi_level_gae": bi_level_gae,
}
"""Estimators that need a critic, by the name of the setting."""


def _flat(turns: Turns) -> tuple[float, ...]:
    return tuple(value for turn in turns for value in turn)


def _sums(advantages: tuple[float, ...], values: tuple[float, ...]) -> tuple[float | None, ...]:
    return tuple(advantage + value for advantage, value in zip(advantages, values, strict=True))
