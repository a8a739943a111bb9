"""Counters, gauges and histograms of one daemon, on three ways out: Prometheus, JSONL rows, a snapshot for its status.

Invariant: names look like `plane/noun/measure_unit`; every process that writes rows has a file of its own, and every
row names the axis of its position (learner: batch, policy_version), so rows written at different rates never displace
each other. All methods may be called from any thread; a histogram belongs to one thread that observes.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from longturn.disk import writing_to
from longturn.errors import ConfigError

BOUNDS_S = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
"""Upper ends of a histogram's buckets; one more takes what is above."""


class Histogram:
    """Durations in buckets. `observe` costs well under a microsecond: no lock, one thread observes and any may read."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    def observe(self, duration_s: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self.total_s += duration_s

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper end, number up to it) of every bucket, as Prometheus wants them."""
        bounds = [*map(str, BOUNDS_S), "+Inf"]
        return list(zip(bounds, itertools.accumulate(self.counts), strict=True))


class Histograms(dict[str, Histogram]):
    """One histogram per value of a label, made when it is first asked for."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self.label = label

    def __missing__(self, value: str) -> Histogram:
        histogram = self[value] = Histogram()
        return histogram


class Metrics:
    """Counters and gauges by name, histograms by name and label."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._histograms: dict[str, Histograms] = {}
        self._counters: dict[str, float] = {}
        self._gauges: dict[str, float] = {}

    def count(self, name: str, amount: float = 1.0) -> None:
        """Add to a counter."""
        with self._lock:
            self._counters[name] = self._counters.get(name, 0.0) + amount

    def gauge(self, name: str, value: float) -> None:
        """Set a gauge."""
        with self._lock:
            self._gauges[name] = value

    def histograms(self, name: str, *, label: str) -> Histograms:
        """The histograms of a name; Prometheus sees them, rows and snapshots do not."""
        with self._lock:
            return self._histograms.setdefault(name, Histograms(label))

    def snapshot(self) -> dict[str, float]:
        """All values by name."""
        with self._lock:
            return {**self._counters, **self._gauges}

    def collect(self) -> list[Metric]:
        """What Prometheus scrapes."""
        with self._lock:
            counters, gauges, histograms = dict(self._counters), dict(self._gauges), dict(self._histograms)
        return [
            *(_histogram_family(name, family) for name, family in histograms.items()),
            *(CounterMetricFamily(_prometheus_name(name), name, value=value) for name, value in counters.items()),
            *(GaugeMetricFamily(_prometheus_name(name), name, value=value) for name, value in gauges.items()),
        ]


def _histogram_family(name: str, histograms: Histograms) -> HistogramMetricFamily:
    family = HistogramMetricFamily(_prometheus_name(name), name, labels=[histograms.label])
    for value, histogram in list(histograms.items()):
        family.add_metric([value], buckets=histogram.cumulative(), sum_value=histogram.total_s)
    return family


def _prometheus_name(name: str) -> str:
    return "longturn_" + "".join(letter if letter.isalnum() else "_" for letter in name)


class MetricsServer:
    """Serves `/metrics` on loopback until closed."""

    def __init__(self, metrics: Metrics, *, port: int, setting: str) -> None:
        registry = CollectorRegistry()
        registry.register(metrics)  # type: ignore[arg-type]  # a collector is whatever has `collect`
        try:
            self._server, self._thread = start_http_server(port, addr="127.0.0.1", registry=registry)
        except OSError as error:
            raise ConfigError(f"cannot serve metrics on port {port}: {error.strerror}; change {setting}") from error

    @property
    def port(self) -> int:
        """Port in use."""
        return self._server.server_port

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class MetricsFile:
    """Appends rows of measurements to a JSONL file, each flushed as it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        with writing_to(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: a row that could not be written must not be tried again at the end, nor stay by halves.
            self._file = path.open("ab", buffering=0)

    def write(self, axis: str, position: int, values: Mapping[str, float | str | None]) -> None:
        """Append one row: `axis` names what `position` counts, such as policy_version. DiskError if it finds no room.

        A row is in the file whole or not at all.
        """
        row: dict[str, object] = {"time_s": time.time(), axis: position, **values}
        data = json.dumps(row).encode() + b"\n"
        with self._lock, writing_to(self._path):
            size_bytes = self._file.seek(0, os.SEEK_END)
            try:
                if self._file.write(data) != len(data):
                    raise OSError(errno.ENOSPC, "only a part of the row found room")
            except OSError:
                if self._path.is_file():
                    self._file.truncate(size_bytes)
                raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
