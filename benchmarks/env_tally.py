"""What every load of bench_env_rpc measures, in any Python: standard library only."""

import json
import os
import resource
import statistics
import time
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Processor time of a process and all below it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S + sum(cpu_s(int(child)) for child in below)


class Tally:
    """One run: `started` once the sessions stand, a latency appended to `latencies_s` per step, `report` at the end."""

    def __init__(self, server_pid: int, num_sessions: int) -> None:
        self._server_pid = server_pid
        self._num_sessions = num_sessions
        self._created_s = time.perf_counter()
        self._start_s = self._began_s = self._server_cpu_s = self._client_cpu_s = 0.0
        self.latencies_s: list[float] = []
        self.num_failed = 0

    def started(self) -> float:
        """The sessions stand and the stepping begins; returns the clock."""
        self._server_cpu_s, self._client_cpu_s = cpu_s(self._server_pid), _own_cpu_s()
        self._began_s = time.perf_counter()
        self._start_s = self._began_s - self._created_s
        return self._began_s

    def report(self) -> str:
        """The stepping has just ended: one JSON object."""
        seconds = time.perf_counter() - self._began_s
        percentiles = statistics.quantiles(self.latencies_s, n=100)
        return json.dumps(
            {
                "steps": len(self.latencies_s),
                "failed": self.num_failed,
                "seconds": seconds,
                "start_ms": self._start_s / self._num_sessions * 1e3,
                "p50_ms": percentiles[49] * 1e3,
                "p99_ms": percentiles[98] * 1e3,
                "server_cpu_s": cpu_s(self._server_pid) - self._server_cpu_s,
                "client_cpu_s": _own_cpu_s() - self._client_cpu_s,
            }
        )


def _own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
