"""Starts a real SGLang on this machine's CPU, from the folder that `make sglang-env` fills."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
START_DEADLINE_S = 300.0
STOP_DEADLINE_S = 30.0


def sglang_python() -> Path:
    """Interpreter of SGLang's own environment; LONGTURN_SGLANG_ENV names another folder than .venv-sglang."""
    folder = Path(os.environ.get("LONGTURN_SGLANG_ENV") or ROOT / ".venv-sglang")
    python = folder / "bin" / "python"
    assert python.exists(), (
        f"{folder} holds no SGLang; run `make sglang-env`, or name its folder in LONGTURN_SGLANG_ENV"
    )
    return python


def sglang_command(
    model: Path, port: int, *, dtype: str, max_total_tokens: int, max_running_requests: int, options: Sequence[str]
) -> list[str]:
    """Command line of a server that computes on one core and sleeps when idle."""
    # Without max-total-tokens the cache takes a share of all memory; without sleep-on-idle the scheduler spins.
    settings: Mapping[str, object] = {
        "model-path": model,
        "host": "127.0.0.1",
        "port": port,
        "device": "cpu",
        "dtype": dtype,
        "attention-backend": "torch_native",
        "sampling-backend": "pytorch",
        "cuda-graph-backend-decode": "disabled",
        "cuda-graph-backend-prefill": "disabled",
        "max-total-tokens": max_total_tokens,
        "max-running-requests": max_running_requests,
    }
    named = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    flags = ["--disable-overlap-schedule", "--skip-server-warmup", "--sleep-on-idle"]
    return [str(sglang_python()), "-m", "sglang.launch_server", *named, *flags, *options]


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class SglangServer:
    """One server with its child processes, in a process group of its own."""

    def __init__(
        self,
        model: Path,
        log: Path,
        *,
        port: int = 0,
        cwd: Path | None = None,
        dtype: str = "bfloat16",
        max_total_tokens: int = 80_000,
        max_running_requests: int = 64,
        options: Sequence[str] = (),
    ) -> None:
        """Start it, and wait until it answers; `port` 0 takes a free one, `cwd` is where relative weight paths lie."""
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        command = sglang_command(
            model,
            self.port,
            dtype=dtype,
            max_total_tokens=max_total_tokens,
            max_running_requests=max_running_requests,
            options=options,
        )
        environment = os.environ | {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        environment["GLOO_SOCKET_IFNAME"] = "lo"
        environment.pop("PYTHONPATH", None)  # its packages are its own
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command, cwd=cwd, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            wait_until(lambda: self._answers() or self._process.poll() is not None, limit_s=START_DEADLINE_S)
            assert self._process.poll() is None, f"SGLang did not start:\n{log.read_text(errors='replace')[-5000:]}"
        except BaseException:
            self.kill()
            raise

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5.0) as response:
                return response.status == 200
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def kill(self) -> None:
        """SIGKILL to all its processes at once."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM; what is left after a while is killed."""
        if self._process.poll() is None:
            self._process.terminate()
            # It may wait for running requests; its group is ended below either way.
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_DEADLINE_S)
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # all of them may have ended
            os.killpg(self._process.pid, number)
        self._process.wait(STOP_DEADLINE_S)


@contextmanager
def sglang_server(model: Path, log: Path, **settings: object) -> Iterator[SglangServer]:
    """A running server that is gone afterwards, whatever `SglangServer` is given."""
    server = SglangServer(model, log, **settings)  # type: ignore[arg-type]
    try:
        yield server
    finally:
        server.stop()
