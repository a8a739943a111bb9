"""What the learner carries from one training step to the next, apart from weights and optimizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from learner.diagnostics.cascade import CascadeTracker
from learner.diagnostics.regimes import RegimeTracker
from learner.filters.running_scores import RunningScores
from learner.filters.shadow import ShadowReport
from learner.history import EMPTY_HISTORY
from learner.length_bias import LengthBiasMeter
from learner.losses.entropy_history import EntropyHistory, HistoryOptions, TurnEntropyHistory


class EndReason(StrEnum):
    """Why training ends; those after STOPPED also say why a batch was skipped."""

    COMPLETED = "COMPLETED"
    """All planned batches were consumed."""
    REPETITION = "REPETITION"
    """Completions repeat one token, and `alarms.on_repetition` says to stop."""
    LEDGER_ENDED = "LEDGER_ENDED"
    """A replay trained every batch that the recorded run consumed."""
    STOPPED = "STOPPED"
    """The process was asked to stop."""
    NO_SIGNAL = "NO_SIGNAL"
    """Every group of a batch was filtered away."""
    NO_GROUPS = "NO_GROUPS"
    """No group of a batch was complete."""
    NON_FINITE = "NON_FINITE"
    """Scores, loss or gradient of a batch were not finite."""


@dataclass(slots=True, kw_only=True)
class TrainerState:
    """`training_step` is the trainer version: it indexes beta, the learning rate and the entropy history."""

    run_id: str
    training_step: int = 0
    batches_consumed: int = 0
    skipped_in_a_row: int = 0
    skip_reason: EndReason = EndReason.NO_SIGNAL
    """Why they were skipped: NO_SIGNAL if all were for that, else the last other reason."""
    history_digest: str = EMPTY_HISTORY
    entropy_history: EntropyHistory = field(default_factory=EntropyHistory)
    turn_entropy_history: TurnEntropyHistory = field(default_factory=TurnEntropyHistory)
    entropy_coefficient: float = 0.0
    """Where an adaptive coefficient stands."""
    running_scores: RunningScores = field(default_factory=RunningScores)
    """What a streaming filter has seen."""
    shadow: ShadowReport = field(default_factory=ShadowReport)
    """How a streaming filter compares with the batch rule."""
    regimes: RegimeTracker = field(default_factory=RegimeTracker)
    cascade: CascadeTracker = field(default_factory=CascadeTracker)
    length_bias: LengthBiasMeter = field(default_factory=LengthBiasMeter)
    num_trained_turns: int = 0
    num_trained_trajectories: int = 0
    wall_s: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds per phase over the history of the weights."""

    @classmethod
    def fresh(cls, run_id: str, history_options: HistoryOptions) -> TrainerState:
        """The state of a run that has not trained yet."""
        return cls(
            run_id=run_id,
            entropy_history=EntropyHistory(options=history_options),
            turn_entropy_history=TurnEntropyHistory(options=history_options),
        )

    def to_json(self) -> dict[str, Any]:
        """As it lies in a checkpoint."""
        return {
            "run_id": self.run_id,
            "training_step": self.training_step,
            "batches_consumed": self.batches_consumed,
            "skipped_in_a_row": self.skipped_in_a_row,
            "skip_reason": self.skip_reason.value,
            "history_digest": self.history_digest,
            "entropy_history": self.entropy_history.to_state(),
            "turn_entropy_history": self.turn_entropy_history.to_state(),
            "entropy_coefficient": self.entropy_coefficient,
            "running_scores": self.running_scores.to_state(),
            "shadow": self.shadow.to_state(),
            "regimes": self.regimes.to_state(),
            "cascade": self.cascade.to_state(),
            "length_bias": self.length_bias.to_state(),
            "num_trained_turns": self.num_trained_turns,
            "num_trained_trajectories": self.num_trained_trajectories,
            "wall_s": self.wall_s,
        }

    @classmethod
    def from_json(cls, state: dict[str, Any], history_options: HistoryOptions) -> TrainerState:
        """Read from a checkpoint; KeyError or ValueError if something is missing."""
        return cls(
            run_id=state["run_id"],
            training_step=state["training_step"],
            batches_consumed=state["batches_consumed"],
            skipped_in_a_row=state["skipped_in_a_row"],
            skip_reason=EndReason(state["skip_reason"]),
            history_digest=state["history_digest"],
            entropy_history=EntropyHistory.from_state(state["entropy_history"], history_options),
            turn_entropy_history=TurnEntropyHistory.from_state(state["turn_entropy_history"], history_options),
            entropy_coefficient=float(state["entropy_coefficient"]),
            running_scores=RunningScores.from_state(state["running_scores"]),
            shadow=ShadowReport.from_state(state["shadow"]),
            regimes=RegimeTracker.from_state(state["regimes"]),
            cascade=CascadeTracker.from_state(state["cascade"]),
            length_bias=LengthBiasMeter.from_state(state["length_bias"]),
            num_trained_turns=state["num_trained_turns"],
            num_trained_trajectories=state["num_trained_trajectories"],
            wall_s=dict(state["wall_s"]),
        )
