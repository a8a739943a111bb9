"""Learning rate by trainer version: the training step in the surviving history."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSchedule:
    """Warm-up, then constant, linear or cosine decay to `min_ratio` of the peak at `total_steps`."""

    kind: str
    learning_rate: float
    warmup_steps: int
    min_ratio: float
    total_steps: int

    def rate(self, training_step: int) -> float:
        """Rate of the update that makes `training_step` + 1 out of `training_step`, from 0."""
        if training_step < self.warmup_steps:
            return self.learning_rate * (training_step + 1) / self.warmup_steps
        if self.kind == "constant":
            return self.learning_rate
        span = max(1, self.total_steps - self.warmup_steps)
        share = min(1.0, (training_step - self.warmup_steps) / span)
        falling = 1.0 - share if self.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * share))
        return self.learning_rate * (self.min_ratio + (1.0 - self.min_ratio) * falling)
