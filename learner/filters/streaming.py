"""Variance mass without waiting for the batch: a group is judged as it completes, against the scores seen before.

The rule of `variance_mass` is applied to a batch of this group and as many others as a batch has, as the running
distribution has them. Judging before the batch is known costs exactness; how much is measured by
`learner.filters.shadow`, which runs the batch rule on the same groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from learner.filters.running_scores import RunningScores
from learner.filters.selection import Selection, Verdict, rank
from learner.filters.variance_mass import VarianceMass


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingMass:
    """Holds the running scores, which every judgement extends."""

    rule: VarianceMass = field(default_factory=VarianceMass)
    groups_per_batch: int = 8
    """Size of the batch that the running distribution stands for."""
    running: RunningScores = field(default_factory=RunningScores)

    def judge(self, score: float) -> Verdict:
        """The verdict on one group, final; its score counts from now on."""
        verdict = self.rule.judge(score, self.running.per_group(self.groups_per_batch - 1))
        self.running.add(score)
        return verdict

    def select(self, scores: Sequence[float]) -> Selection:
        """Judge the groups of a batch one after another, in the order given."""
        verdicts = tuple(self.judge(score) for score in scores)
        kept = rank(scores, [index for index, verdict in enumerate(verdicts) if verdict is Verdict.KEPT])
        return Selection(scores=tuple(scores), verdicts=verdicts, kept=tuple(kept))
