"""Where measures go: JSONL rows, TensorBoard, gauges for /metrics, and alarms."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from longturn.disk import writing_to
from longturn.metrics import Metrics, MetricsFile

logger = logging.getLogger(__name__)


class ScalarWriter(Protocol):
    """What is needed of TensorBoard."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None: ...

    def close(self) -> None: ...


class MeasureBoard:
    """Writes rows of measures. May be used by one thread at a time."""

    def __init__(self, path: Path, metrics: Metrics, writer: ScalarWriter | None) -> None:
        self._path = path
        self._file = MetricsFile(path)
        self._metrics = metrics
        self._writer = writer

    def write(self, axis: str, position: int, values: Mapping[str, float | str | None]) -> None:
        """Write a row everywhere."""
        self._file.write(axis, position, values)
        for name, value in values.items():
            if isinstance(value, int | float):
                self._metrics.gauge(name, value)
                if self._writer is not None:
                    with writing_to(self._path.parent.parent / "tensorboard"):
                        self._writer.add_scalar(name, value, position)

    def alarm(self, rule: str, **fields: object) -> None:
        """Log and count a named rule that fired."""
        self._metrics.count(f"learner/alarm/{rule}")
        logger.warning("alarm", extra={"rule": rule, **fields})

    def close(self) -> None:
        """Flush and close."""
        self._file.close()
        if self._writer is not None:
            with writing_to(self._path.parent.parent / "tensorboard"):
                self._writer.close()


def open_tensorboard(folder: Path) -> ScalarWriter:
    """TensorBoard's writer. Imported here because it is slow to load and may be switched off."""
    from torch.utils.tensorboard import SummaryWriter

    with writing_to(folder):
        return SummaryWriter(str(folder))
