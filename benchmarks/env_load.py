"""Load for bench_env_rpc: sessions that step as fast as they are answered, in a process of their own.

Run: python benchmarks/env_load.py ROAD ADDRESS SERVER_PID TASKS SESSIONS SECONDS, where ROAD is client (EnvClient),
stream (the raw Play stream) or unary, and TASKS is echo, sleep (steps block for 2 ms), bare, or textworld (task ids on
stdin). Prints JSON.
"""

import asyncio
import itertools
import sys
import time
import uuid

import grpc
from env_tally import Tally

from clients.config import EnvClientConfig
from clients.environment import EnvClient
from longturn.codec import task_to_proto
from longturn.records import KnobValue, Task
from longturn.v1 import environment_pb2, environment_pb2_grpc

ENDLESS = 1_000_000


def make_tasks(kind: str, number: int) -> list[Task]:
    """Tasks of the sessions."""
    if kind == "textworld":
        return [Task(environment="textworld", task_id=task_id) for task_id in sys.stdin.read().split()][:number]
    knobs: dict[str, KnobValue] = {"horizon": ENDLESS}
    if kind == "sleep":
        knobs["step_sleep_ms"] = 2.0
    return [Task(environment="echo", task_id=f"echo/train/{index:06d}", knobs=knobs) for index in range(number)]


def start_request(task: Task) -> environment_pb2.StartEpisodeRequest:
    """An episode that does not end by its turn limit."""
    return environment_pb2.StartEpisodeRequest(request_id=uuid.uuid4().hex, task=task_to_proto(task), max_turns=ENDLESS)


async def by_client(address: str, tasks: list[Task], seconds: float, tally: Tally) -> str:
    """EnvClient: one coroutine per session."""
    async with EnvClient(EnvClientConfig(address=address)) as envs:
        episodes = await asyncio.gather(*(envs.start(task, max_turns=ENDLESS) for task in tasks))
        end_s = tally.started() + seconds

        async def play(episode) -> None:
            now_s = time.perf_counter()
            while now_s < end_s:
                await episode.step("look")
                before_s, now_s = now_s, time.perf_counter()
                tally.latencies_s.append(now_s - before_s)

        await asyncio.gather(*(play(episode) for episode in episodes))
        return tally.report()


async def by_stream(address: str, tasks: list[Task], seconds: float, tally: Tally, *, is_bare: bool) -> str:
    """The raw stream: what is ready goes out as one message."""
    async with grpc.aio.insecure_channel(address) as channel:
        stream = environment_pb2_grpc.EnvironmentServiceStub(channel).Play()
        sessions = [("e", "t")] * len(tasks) if is_bare else await _start_all(stream, tasks)
        turns = [0] * len(sessions)
        sent_s = [0.0] * len(sessions)
        ready = list(range(len(sessions)))
        wake = asyncio.Event()
        end_s = tally.started() + seconds

        async def write() -> None:
            while True:
                message = environment_pb2.PlayRequest()
                now_s = time.perf_counter()
                for index in ready:
                    call = message.calls.add()
                    call.call_id = index + 1
                    step = call.step
                    step.episode_id, step.episode_token = sessions[index]
                    step.turn_index, step.action = turns[index], "look"
                    sent_s[index] = now_s
                ready.clear()
                await stream.write(message)
                while not ready:
                    wake.clear()
                    await wake.wait()

        writer = asyncio.create_task(write())
        while time.perf_counter() < end_s:
            replies = (await stream.read()).replies
            now_s = time.perf_counter()
            for reply in replies:
                index = reply.call_id - 1
                tally.num_failed += reply.HasField("error")
                turns[index] = reply.step.turn_index
                tally.latencies_s.append(now_s - sent_s[index])
                ready.append(index)
            wake.set()
        report = tally.report()
        writer.cancel()
        stream.cancel()
        return report


async def _start_all(stream, tasks: list[Task]) -> list[tuple[str, str]]:
    calls = [environment_pb2.PlayCall(call_id=index + 1, start=start_request(task)) for index, task in enumerate(tasks)]
    await stream.write(environment_pb2.PlayRequest(calls=calls))
    sessions: dict[int, tuple[str, str]] = {}
    while len(sessions) < len(tasks):
        for reply in (await stream.read()).replies:
            sessions[reply.call_id] = (reply.start.episode_id, reply.start.episode_token)
    return [sessions[index + 1] for index in range(len(tasks))]


async def by_unary(address: str, tasks: list[Task], seconds: float, tally: Tally) -> str:
    """One unary call per step."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = environment_pb2_grpc.EnvironmentServiceStub(channel)
        started = await asyncio.gather(*(stub.StartEpisode(start_request(task)) for task in tasks))
        end_s = tally.started() + seconds

        async def play(episode: environment_pb2.StartEpisodeResponse) -> None:
            names = {"episode_id": episode.episode_id, "episode_token": episode.episode_token, "action": "look"}
            now_s = time.perf_counter()
            for turn_index in itertools.count():
                if now_s >= end_s:
                    return
                await stub.Step(environment_pb2.StepRequest(turn_index=turn_index, **names))
                before_s, now_s = now_s, time.perf_counter()
                tally.latencies_s.append(now_s - before_s)

        await asyncio.gather(*(play(episode) for episode in started))
        return tally.report()


async def main(road: str, address: str, server_pid: int, kind: str, num_sessions: int, seconds: float) -> str:
    """Play one road and report."""
    tasks = make_tasks(kind, num_sessions)
    tally = Tally(server_pid, num_sessions)
    if road == "client":
        return await by_client(address, tasks, seconds, tally)
    if road == "stream":
        return await by_stream(address, tasks, seconds, tally, is_bare=kind == "bare")
    return await by_unary(address, tasks, seconds, tally)


if __name__ == "__main__":
    print(asyncio.run(main(*sys.argv[1:3], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), float(sys.argv[6]))))
