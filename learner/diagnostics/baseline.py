"""Reference of a measurement: the median of its first values, and alarms that need several measurements in a row."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median


@dataclass(slots=True)
class FirstMedian:
    """Median of the first `size` values; later values change nothing."""

    size: int = 10
    values: list[float] = field(default_factory=list[float])

    def add(self, value: float) -> None:
        if not self.is_settled:
            self.values.append(value)

    @property
    def is_settled(self) -> bool:
        return len(self.values) >= self.size

    @property
    def value(self) -> float | None:
        """Median of what was seen so far, absent before the first value."""
        return median(self.values) if self.values else None

    def to_state(self) -> dict[str, int | list[float]]:
        return {"size": self.size, "values": list(self.values)}

    @classmethod
    def from_state(cls, state: Mapping[str, int | list[float]]) -> "FirstMedian":
        size, values = state["size"], state["values"]
        if not isinstance(size, int) or not isinstance(values, list):
            raise ValueError("a median's state holds size and values")
        return cls(size=size, values=[float(value) for value in values])


@dataclass(slots=True)
class InARow:
    """Fires while the last `needed` observations in a row were true."""

    needed: int = 3
    count: int = 0

    def observe(self, holds: bool) -> bool:
        self.count = self.count + 1 if holds else 0
        return self.count >= self.needed
