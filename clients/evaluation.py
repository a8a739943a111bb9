"""What a played panel says about a policy."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clients.panel import Outcome
from longturn.records import Trajectory

_Z95 = 1.959963984540054
"""97.5 % quantile of the normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Results of some episodes."""

    episodes: int
    success: float
    ci95: tuple[float, float]
    """Wilson score interval of the success rate."""
    score_mean: float
    return_mean: float
    turns_mean: float
    completion_tokens_mean: float
    format_valid_share: float
    """Share of turns whose completion had the required form."""
    action_valid_share: float
    """Share of turns whose action the environment could use."""

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "success": self.success,
            "ci95": list(self.ci95),
            "episodes": self.episodes,
            "score_mean": self.score_mean,
            "return_mean": self.return_mean,
            "turns_mean": self.turns_mean,
            "completion_tokens_mean": self.completion_tokens_mean,
            "format_valid_share": self.format_valid_share,
            "action_valid_share": self.action_valid_share,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Results of a panel. Episodes that broke are no result: they are listed apart and enter no mean."""

    score: Score
    by_kind: dict[str, Score]
    failed: dict[str, int]
    """Entries without a result, by reason."""
    end_causes: dict[str, int]
    """How the episodes ended: TERMINATED or a cause of truncation."""
    policy_versions: tuple[int, ...]
    """Versions that sampled tokens, as the engine reported them."""

    def to_json(self) -> dict[str, object]:
        """Plain values; the panel's own score stands at the top."""
        return {
            **self.score.to_json(),
            "by_kind": {kind: score.to_json() for kind, score in sorted(self.by_kind.items())},
            "failed": self.failed,
            "end_causes": self.end_causes,
            "policy_versions": list(self.policy_versions),
        }


def wilson_interval(num_success: int, num_episodes: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of a share (Wilson 1927); (0, 1) without episodes."""
    if num_episodes == 0:
        return (0.0, 1.0)
    share, z2 = num_success / num_episodes, _Z95**2
    centre = (share + z2 / (2 * num_episodes)) / (1 + z2 / num_episodes)
    spread = share * (1 - share) / num_episodes + z2 / (4 * num_episodes**2)
    half = _Z95 * math.sqrt(spread) / (1 + z2 / num_episodes)
    # Rounding must not keep the ends from 0 and 1 where the formula reaches them.
    low = 0.0 if num_success == 0 else centre - half
    high = 1.0 if num_success == num_episodes else centre + half
    return (low, high)


def summarise(outcomes: Iterable[Outcome]) -> Evaluation:
    """Count a panel."""
    trajectories: list[Trajectory] = []
    by_kind: defaultdict[str, list[Trajectory]] = defaultdict(list)
    failed: Counter[str] = Counter()
    for outcome in outcomes:
        if outcome.trajectory is None:
            failed[outcome.failure.reason if outcome.failure else "UNKNOWN"] += 1
            continue
        trajectories.append(outcome.trajectory)
        by_kind[outcome.entry.kind or outcome.entry.task.environment].append(outcome.trajectory)
    return Evaluation(
        score=_score(trajectories),
        by_kind={kind: _score(members) for kind, members in by_kind.items()},
        failed=dict(failed),
        end_causes=dict(Counter(_ending(trajectory) for trajectory in trajectories)),
        policy_versions=tuple(sorted({version for item in trajectories for version in _versions(item)})),
    )


def _score(trajectories: Sequence[Trajectory]) -> Score:
    num_success = sum(trajectory.success for trajectory in trajectories)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    return Score(
        episodes=len(trajectories),
        success=num_success / max(len(trajectories), 1),
        ci95=wilson_interval(num_success, len(trajectories)),
        score_mean=_mean([trajectory.score for trajectory in trajectories]),
        return_mean=_mean([trajectory.episode_return for trajectory in trajectories]),
        turns_mean=_mean([len(trajectory.turns) for trajectory in trajectories]),
        completion_tokens_mean=_mean([trajectory.num_completion_tokens for trajectory in trajectories]),
        format_valid_share=_mean([turn.format_valid for turn in turns]),
        action_valid_share=_mean([turn.action_valid for turn in turns]),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / max(len(values), 1)


def _ending(trajectory: Trajectory) -> str:
    return trajectory.end_cause.name if trajectory.end_cause else trajectory.status.name


def _versions(trajectory: Trajectory) -> set[int]:
    return {span.policy_version for turn in trajectory.turns for span in turn.policy_spans}
