"""Soak of the env server: full load over Play streams while its workers are killed at random.

Run: python benchmarks/soak_env_server.py --seconds 1800. It checks that every request gets exactly one final reply,
that every episode ends as its own actions say, that none is leaked and that memory and descriptors stay flat. Prints a
summary in Markdown; the exit status is 1 if a check failed.
"""

import argparse
import asyncio
import itertools
import json
import os
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import grpc

from longturn.codec import knob_to_proto
from longturn.status import get_status
from longturn.v1 import environment_pb2, environment_pb2_grpc, status_pb2, status_pb2_grpc

NUM_STREAMS = 2
SESSIONS_PER_STREAM = 128
LEASE_S = 60.0
STEPS_BETWEEN_KILLS = 200
"""On a machine that starves the server, kills by the clock alone would let no replay come to its end."""
SHARE_ABANDONED = 0.02
SHARE_FORKED = 0.02
SHARE_REPEATED = 0.05
PATIENCE_S = 600.0
"""A call that waits longer ends the soak; a busy machine replays slowly."""
MAX_GROWTH_BYTES = 16 * 2**20
RUNNING = environment_pb2.EPISODE_STATUS_RUNNING
FAILED = environment_pb2.EPISODE_STATUS_FAILED
ALLOWED_FAILURES = {"WORKER_CRASHED"}
"""What loses its worker twice under the same step, or start, is given up by rule."""


class Wire:
    """One Play stream; notes every reply that answers nothing, or answers twice."""

    def __init__(self, stub: environment_pb2_grpc.EnvironmentServiceStub, counts: Counter[str]) -> None:
        self._stream = stub.Play()
        self._counts = counts
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[environment_pb2.PlayReply]] = {}
        self._outbox: list[environment_pb2.PlayCall] = []
        self._wake = asyncio.Event()
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]

    async def ask(self, **call: object) -> environment_pb2.PlayReply:
        """Send a call and wait for its reply; refusals that say when to come back are obeyed."""
        while True:
            message = environment_pb2.PlayCall(call_id=next(self._ids), **call)
            self._waiting[message.call_id] = future = asyncio.get_running_loop().create_future()
            self._outbox.append(message)
            self._wake.set()
            self._counts["requests"] += 1
            try:
                reply = await asyncio.wait_for(future, PATIENCE_S)
            except TimeoutError:
                raise SystemExit(f"no reply within {PATIENCE_S:g} s to {message}") from None
            if not reply.HasField("error") or not reply.error.HasField("retry_after"):
                return reply
            self._counts[f"told to come back: {reply.error.reason}"] += 1
            await asyncio.sleep(reply.error.retry_after.ToTimedelta().total_seconds())

    async def close(self) -> None:
        """End the stream."""
        for task in self._tasks:
            task.cancel()
        self._stream.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._counts["unanswered"] += len(self._waiting)

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            calls, self._outbox = self._outbox, []
            await self._stream.write(environment_pb2.PlayRequest(calls=calls))

    async def _read(self) -> None:
        while (message := await self._stream.read()) is not grpc.aio.EOF:
            for reply in message.replies:
                future = self._waiting.pop(reply.call_id, None)
                if future is None:
                    self._counts["replies to nothing"] += 1
                else:
                    self._counts["replies"] += 1
                    future.set_result(reply)


async def play_forever(wire: Wire, dice: random.Random, counts: Counter[str], end_s: float) -> None:
    """Play episode after episode until the time is up."""
    while time.monotonic() < end_s:
        request = start_request(dice)
        reply = await wire.ask(start=request)
        started = reply.start
        if reply.HasField("error"):
            counts[f"refused: {reply.error.reason}"] += 1
            continue
        counts["episodes"] += 1
        await play(wire, dice, counts, started, request.task.knobs["horizon"].int_value)


def start_request(dice: random.Random) -> environment_pb2.StartEpisodeRequest:
    """An episode of the echo environment of some length, thread-safe or not."""
    name = dice.choice(("echo", "faulty"))
    request = environment_pb2.StartEpisodeRequest(request_id=uuid.UUID(int=dice.getrandbits(128)).hex)
    request.seed = dice.getrandbits(32)
    request.task.environment, request.task.task_id = name, f"{name}/train/{dice.randrange(100_000):06d}"
    request.task.knobs["horizon"].CopyFrom(knob_to_proto(dice.randint(3, 60)))
    return request


async def play(
    wire: Wire,
    dice: random.Random,
    counts: Counter[str],
    started: environment_pb2.StartEpisodeResponse | environment_pb2.ForkEpisodeResponse,
    horizon: int,
) -> None:
    """Say every word asked for: a step that is lost or applied twice would spoil the score."""
    names = {"episode_id": started.episode_id, "episode_token": started.episode_token}
    result = started.result
    while result.status == RUNNING:
        if dice.random() < SHARE_ABANDONED / horizon:
            counts["episodes abandoned"] += 1
            return
        if dice.random() < SHARE_FORKED / horizon:
            fork = {**names, "request_id": uuid.UUID(int=dice.getrandbits(128)).hex, "at_turn": result.turn_index}
            reply = await wire.ask(fork=environment_pb2.ForkEpisodeRequest(**fork))
            copy = reply.fork
            counts["episodes forked" if copy.episode_id else f"refused: {reply.error.reason}"] += 1
            if copy.episode_id:
                await wire.ask(
                    end=environment_pb2.EndEpisodeRequest(episode_id=copy.episode_id, episode_token=copy.episode_token)
                )
        word = result.observation.partition("Say ")[2].partition(".")[0]
        step = environment_pb2.StepRequest(**names, turn_index=result.turn_index, action=word)
        times = 2 if dice.random() < SHARE_REPEATED else 1
        replies = await asyncio.gather(*(wire.ask(step=step) for _ in range(times)))
        if any(reply.HasField("error") for reply in replies):
            counts[f"refused: {replies[0].error.reason or replies[-1].error.reason}"] += 1
            return
        counts["repeats that differ"] += replies[0].step != replies[-1].step
        new = replies[0].step
        counts["turns out of order"] += new.turn_index != result.turn_index + (new.status != FAILED)
        counts["steps"] += 1
        counts["steps after a replay"] += new.rebuilt
        result = new
    if result.status == FAILED:
        counts[f"episodes failed: {result.failure.reason}"] += 1
    else:
        counts["episodes won"] += result.success
        counts["episodes ended wrongly"] += not result.success or abs(result.episode_return - 1.0) > 1e-9


@contextmanager
def serving(folder: Path):
    """A server process with a state dir; its address and process id."""
    ready = folder / "ready.json"
    command = [sys.executable, "-m", "env_server", "--port", "0", "--env", "echo", "--env", "faulty"]
    command += ["--state-dir", str(folder / "state"), "--ready-file", str(ready)]
    command += ["--set", f"lease_s={LEASE_S}", "--set", "final_grace_s=2.0", "--set", "recycle_episodes=2000"]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})
    try:
        while not ready.exists():
            if process.poll() is not None:
                raise SystemExit((folder / "server.log").read_text())
            time.sleep(0.05)
        address = json.loads(ready.read_text())["address"]
        try:
            yield address, process.pid
        except SystemExit:
            print(get_status(address, timeout_s=60.0), (folder / "server.log").read_text()[-20_000:], file=sys.stderr)
            raise
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def workers_of(pid: int) -> list[int]:
    """Processes of the server that play or prepare."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"env_server.worker" in _command_line(child)]


def _command_line(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # gone meanwhile
        return b""


def held(pid: int) -> tuple[int, int]:
    """Resident bytes and descriptors of the server process itself."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{pid}/fd"))


async def kill_forever(address: str, pid: int, dice: random.Random, counts: Counter[str]) -> None:
    """SIGKILL a worker every second or so, once all are up again and at work; runs until cancelled."""
    num_steps = 0
    while True:
        await asyncio.sleep(dice.uniform(0.5, 3.0))
        if counts["steps"] < num_steps + STEPS_BETWEEN_KILLS:
            continue
        is_whole = re.fullmatch(r"\d+ open", (await status_of(address)).facts.get("workers", ""))
        if is_whole and (workers := workers_of(pid)):
            os.kill(dice.choice(workers), signal.SIGKILL)
            counts["workers killed"] += 1
            num_steps = counts["steps"]


async def watch_forever(pid: int, samples: list[tuple[int, int]]) -> None:
    """Note what the server holds, twice a second; runs until cancelled."""
    while True:
        samples.append(held(pid))
        await asyncio.sleep(0.5)


async def status_of(address: str) -> status_pb2.GetStatusResponse:
    """What the server says of itself."""
    async with grpc.aio.insecure_channel(address) as channel:
        return await status_pb2_grpc.StatusServiceStub(channel).GetStatus(status_pb2.GetStatusRequest())


async def until_empty(address: str) -> dict[str, float]:
    """Wait until what was abandoned is reaped; the values then, or after a while in vain."""
    end_s = time.monotonic() + 6 * LEASE_S
    while True:
        await asyncio.sleep(0.5)
        values = dict((await status_of(address)).values)
        is_empty = not values["server/episode/num_live"] and not values["server/episode/num_kept"]
        if is_empty or time.monotonic() > end_s:
            return values


async def soak(address: str, pid: int, seconds: float, seed: int) -> tuple[Counter[str], list[tuple[int, int]], dict]:
    """Play for the time; what was counted, what the server held, and its values at the end."""
    counts: Counter[str] = Counter()
    samples: list[tuple[int, int]] = []
    helpers = [
        asyncio.create_task(kill_forever(address, pid, random.Random(seed), counts)),
        asyncio.create_task(watch_forever(pid, samples)),
    ]
    end_s = time.monotonic() + seconds
    async with grpc.aio.insecure_channel(address) as channel:
        stub = environment_pb2_grpc.EnvironmentServiceStub(channel)
        wires = [Wire(stub, counts) for _ in range(NUM_STREAMS)]
        sessions = [
            play_forever(wire, random.Random(seed * 1000 + index), counts, end_s)
            for index, wire in enumerate(wires * SESSIONS_PER_STREAM)
        ]
        await asyncio.gather(*sessions)
        for helper in helpers:
            helper.cancel()
        values = await until_empty(address)
        for wire in wires:
            await wire.close()
    return counts, samples, values


def checks(counts: Counter[str], samples: list[tuple[int, int]], values: dict[str, float]) -> dict[str, bool]:
    """What must hold, by name."""
    quarter = max(1, len(samples) // 4)
    early, late = samples[quarter : 2 * quarter] or samples, samples[-quarter:]
    growth = statistics.median(size for size, _ in late) - statistics.median(size for size, _ in early)
    failures = {name.partition(": ")[2] for name in counts if name.startswith(("episodes failed: ", "refused: "))}
    counts["resident bytes grown, second to last quarter"] = int(growth)
    return {
        "every request has one final reply": counts["requests"] == counts["replies"]
        and not counts["unanswered"] + counts["replies to nothing"],
        "every episode ends as its actions say": not counts["episodes ended wrongly"] + counts["turns out of order"],
        "a repeat has the same reply": not counts["repeats that differ"],
        "nothing fails or is refused but by two crashes in a row": failures <= ALLOWED_FAILURES,
        "no episode is leaked": not values["server/episode/num_live"] and not values["server/episode/num_kept"],
        "memory is flat": growth < MAX_GROWTH_BYTES,
        "descriptors are flat": max(fds for _, fds in late) <= max(fds for _, fds in early) + 8,
        "workers were killed and steps were replayed": bool(
            counts["workers killed"] and counts["steps after a replay"]
        ),
    }


def report(seconds: float, counts: Counter[str], passed: dict[str, bool], values: dict[str, float]) -> str:
    """The summary in Markdown."""
    machine = f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, Python {platform.python_version()}"
    lines = [f"# Soak of the env server: {seconds:g} s on {machine}", ""]
    lines += [
        f"{NUM_STREAMS} streams with {SESSIONS_PER_STREAM} sessions each, state dir on;"
        f" a worker is killed 0.5-3 s after all are up again and {STEPS_BETWEEN_KILLS} steps were answered.",
        "",
    ]
    lines += ["| check | |", "| --- | --- |", *(f"| {name} | {'yes' if ok else 'NO'} |" for name, ok in passed.items())]
    lines += ["", "| counted | |", "| --- | --- |", *(f"| {name} | {counts[name]:,} |" for name in sorted(counts))]
    names = ("num_reaped", "num_rebuilt", "num_replays", "num_forked")
    lines += [f"| server: episodes {name} | {values.get(f'server/episode/{name}', 0):,.0f} |" for name in names]
    lines += [f"| steps per second | {counts['steps'] / seconds:,.0f} |"]
    return "\n".join(lines)


def main() -> int:
    """Run the soak and print its summary."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=1800.0, help="how long to play")
    seconds, seed = parser.parse_args().seconds, 7
    with tempfile.TemporaryDirectory(prefix="longturn-soak-") as folder, serving(Path(folder)) as (address, pid):
        counts, samples, values = asyncio.run(soak(address, pid, seconds, seed))
        passed = checks(counts, samples, values)
    print(report(seconds, counts, passed, values))
    return 0 if all(passed.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
