"""What a played panel says about a policy."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clients.panel import Outcome
from longturn.intervals import wilson
from longturn.records import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Results of some episodes; a mean over nothing is None."""

    episodes: int
    success: float | None
    ci95: tuple[float, float]
    """Wilson score interval of the success rate."""
    score_mean: float | None
    return_mean: float | None
    turns_mean: float | None
    completion_tokens_mean: float | None
    format_valid_share: float | None
    """Share of turns whose completion had the required form."""
    action_valid_share: float | None
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


def summarise(outcomes: Iterable[Outcome]) -> Evaluation:
    """Count a panel."""
    trajectories: list[Trajectory] = []
    by_kind: defaultdict[str, list[Trajectory]] = defaultdict(list)
    failed: Counter[str] = Counter()
    for outcome in outcomes:
        if isinstance(outcome.result, Trajectory):
            trajectories.append(outcome.result)
            by_kind[outcome.entry.kind or outcome.entry.task.environment].append(outcome.result)
        else:
            failed[outcome.result.reason] += 1
    return Evaluation(
        score=_score(trajectories),
        by_kind={kind: _score(members) for kind, members in by_kind.items()},
        failed=dict(failed),
        end_causes=dict(Counter(_ending(trajectory) for trajectory in trajectories)),
        policy_versions=tuple(sorted({version for item in trajectories for version in item.policy_versions})),
    )


def _score(trajectories: Sequence[Trajectory]) -> Score:
    num_success = sum(trajectory.success for trajectory in trajectories)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    return Score(
        episodes=len(trajectories),
        success=_mean([trajectory.success for trajectory in trajectories]),
        ci95=wilson(num_success, len(trajectories)),
        score_mean=_mean([trajectory.score for trajectory in trajectories]),
        return_mean=_mean([trajectory.episode_return for trajectory in trajectories]),
        turns_mean=_mean([len(trajectory.turns) for trajectory in trajectories]),
        completion_tokens_mean=_mean([trajectory.num_completion_tokens for trajectory in trajectories]),
        format_valid_share=_mean([turn.format_valid for turn in turns]),
        action_valid_share=_mean([turn.action_valid for turn in turns]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _ending(trajectory: Trajectory) -> str:
    return trajectory.end_cause.name if trajectory.end_cause else trajectory.status.name
