"""OpenEnv's own server and client as a peer for bench_env_rpc, on a Python that has `openenv` installed.

Run: PYTHON benchmarks/env_openenv.py serve PORT MODE | load ADDRESS SERVER_PID SESSIONS SECONDS
MODE is sync, async, or sleep: a synchronous step that blocks for 2 ms.
"""

import asyncio
import sys
import time

from env_tally import Tally

FILLER = "x" * 400


def serve(port: int, mode: str) -> None:
    """An echo environment with a 400-byte observation behind OpenEnv's server."""
    import uvicorn
    from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

    class EchoAction(Action):
        text: str

    class EchoObservation(Observation):
        text: str = ""

    class EchoEnvironment(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._state = State(episode_id="e", step_count=0)

        def reset(self, seed=None, episode_id=None, **kwargs):
            return EchoObservation(text=FILLER, done=False, reward=0.0)

        def step(self, action, timeout_s=None, **kwargs):
            self._state.step_count += 1
            return EchoObservation(text=FILLER, done=False, reward=0.0)

        @property
        def state(self):
            return self._state

    class SleepingEchoEnvironment(EchoEnvironment):
        def step(self, action, timeout_s=None, **kwargs):
            time.sleep(0.002)
            return super().step(action)

    class AsyncEchoEnvironment(EchoEnvironment):
        async def reset_async(self, seed=None, episode_id=None, **kwargs):
            return self.reset()

        async def step_async(self, action, timeout_s=None, **kwargs):
            return self.step(action)

    kind = {"sync": EchoEnvironment, "async": AsyncEchoEnvironment, "sleep": SleepingEchoEnvironment}[mode]
    app = create_fastapi_app(kind, EchoAction, EchoObservation, max_concurrent_envs=4096)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


async def load(address: str, server_pid: int, num_sessions: int, seconds: float) -> str:
    """Sessions that step as fast as they are answered."""
    from openenv.core.generic_client import GenericEnvClient

    tally = Tally(server_pid, num_sessions)
    gate = asyncio.Semaphore(32)
    clients = [GenericEnvClient(base_url=f"http://{address}") for _ in range(num_sessions)]

    async def start(client) -> None:
        async with gate:
            await client.connect()
            await client.reset()

    await asyncio.gather(*(start(client) for client in clients))
    end_s = tally.started() + seconds

    async def play(client) -> None:
        now_s = time.perf_counter()
        while now_s < end_s:
            await client.step({"text": "look"})
            before_s, now_s = now_s, time.perf_counter()
            tally.latencies_s.append(now_s - before_s)

    await asyncio.gather(*(play(client) for client in clients))
    return tally.report()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]), sys.argv[3])
    else:
        print(asyncio.run(load(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))))
