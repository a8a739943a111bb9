"""Counters and gauges of one daemon, on three ways out: Prometheus, JSONL rows, and a snapshot for its status.

Invariant: names look like `plane/noun/measure_unit`; every process that writes rows has a file of its own, and every
row names the axis of its position (learner: batch, policy_version), so rows written at different rates never displace
each other. All methods may be called from any thread.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from longturn.disk import writing_to
from longturn.errors import ConfigError


class Metrics:
    """Counters and gauges by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
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

    def snapshot(self) -> dict[str, float]:
        """All values by name."""
        with self._lock:
            return {**self._counters, **self._gauges}

    def collect(self) -> list[Metric]:
        """What Prometheus scrapes."""
        with self._lock:
            counters, gauges = dict(self._counters), dict(self._gauges)
        return [
            *(CounterMetricFamily(_prometheus_name(name), name, value=value) for name, value in counters.items()),
            *(GaugeMetricFamily(_prometheus_name(name), name, value=value) for name, value in gauges.items()),
        ]


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
