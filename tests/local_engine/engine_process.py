"""Starts a real engine process and talks to it over loopback."""

import asyncio
import http.client
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from local_engine.config import EngineConfig
from local_engine.model import load_model
from local_engine.serve import serving as engine_serving
from longturn.metrics import Metrics
from tests.support.waiting import wait_until

START_DEADLINE_S = 90.0
DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRequest:
    """A request that is on its way, on a connection of its own."""

    connection: http.client.HTTPConnection

    def has_answer(self) -> bool:
        """Whether the first byte of an answer is here."""
        return bool(select.select([self.connection.sock], [], [], 0.0)[0])

    def reply(self) -> Any:
        """Wait for the body of an answer that must be 200."""
        response = self.connection.getresponse()
        content = response.read()
        assert response.status == 200, content
        return json.loads(content)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineClient:
    """A blocking client of any server that speaks SGLang's dialect."""

    base_url: str
    api_key: str = ""
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(max_workers=80))

    def call(
        self, method: str, path: str, body: object = None, *, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and parsed body (text where it is not JSON); bytes are sent as they are."""
        connection = self._connection()
        try:
            payload = body if isinstance(body, bytes) or body is None else json.dumps(body)
            sent = {"Authorization": f"Bearer {self.api_key}"} if headers is None else headers
            connection.request(method, path, payload, {"Content-Type": "application/json", **sent})
            response = connection.getresponse()
            content = response.read().decode()
        finally:
            connection.close()
        is_json = response.headers.get("Content-Type", "").startswith("application/json")
        return response.status, json.loads(content) if is_json else content

    def post(self, path: str, body: object = None, *, expect: int = 200) -> Any:
        """Body of a POST that must answer with `expect`."""
        status, content = self.call("POST", path, {} if body is None else body)
        assert status == expect, (status, content)
        return content

    def get(self, path: str, *, expect: int = 200) -> Any:
        """Body of a GET that must answer with `expect`."""
        status, content = self.call("GET", path)
        assert status == expect, (status, content)
        return content

    def generate(self, input_ids: object, *, expect: int = 200, rid: str | None = None, **fields: Any) -> Any:
        """One request with logprobs; sampling parameters by keyword, request fields under `body`."""
        body = {"input_ids": input_ids, "return_logprob": True, **fields.pop("body", {})}
        if rid is not None:
            body["rid"] = rid
        return self.post("/generate", body | {"sampling_params": fields}, expect=expect)

    @contextmanager
    def sent(self, input_ids: list[int], **fields: Any) -> Iterator[SentRequest]:
        """One request that is sent and not waited for; leaving the block hangs up."""
        connection = self._connection()
        body = {"input_ids": input_ids, "return_logprob": True, "sampling_params": fields}
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.api_key}"}
        connection.request("POST", "/generate", json.dumps(body), headers)
        try:
            yield SentRequest(connection=connection)
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(urlsplit(self.base_url).netloc, timeout=DEADLINE_S)

    def start(self, input_ids: object, **fields: Any) -> Future[Any]:
        """`generate` in another thread."""
        return self.pool.submit(lambda: self.generate(input_ids, **fields))

    def num_running(self) -> int:
        """Requests that decode now."""
        return int(self.get("/v1/loads?include=core")["loads"][0]["num_running_reqs"])

    def num_unfinished(self) -> int:
        """Requests that run or wait now."""
        core = self.get("/v1/loads?include=core")["loads"][0]
        return int(core["num_running_reqs"]) + int(core["num_waiting_reqs"])

    def update(self, model_path: str, version: str, *, expect: int = 200, **fields: Any) -> Any:
        """Load weights from a folder."""
        body = {"model_path": model_path, "weight_version": version, **fields}
        return self.post("/update_weights_from_disk", body, expect=expect)


def engine_command(settings: Mapping[str, object], *options: str) -> list[str]:
    """Command line of the engine."""
    overrides = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    return [sys.executable, "-m", "local_engine", *overrides, *options]


def engine_environment(api_key: str) -> dict[str, str]:
    """Environment of the engine: one thread, and the key."""
    return os.environ | {"OMP_NUM_THREADS": "1", "LONGTURN_ENGINE_KEY": api_key}


@contextmanager
def serving_here(folder: Path, **settings: Any) -> Iterator[EngineClient]:
    """An engine in a thread of this process: quick to start, for tests that need settings of their own."""
    config = EngineConfig(model_path=folder, port=0, **settings)
    metrics = Metrics()
    model = load_model(config, metrics)
    started: Future[str] = Future()
    stopped = asyncio.Event()
    loop = asyncio.new_event_loop()

    async def main() -> None:
        async with engine_serving(config, model, metrics, api_key="") as served:
            started.set_result(served.url)
            await stopped.wait()

    with asyncio.Runner(loop_factory=lambda: loop) as runner, ThreadPoolExecutor(max_workers=1) as threads:
        running = threads.submit(runner.run, main())
        client = EngineClient(base_url=started.result(START_DEADLINE_S))
        try:
            yield client
        finally:
            client.pool.shutdown(wait=False)
            loop.call_soon_threadsafe(stopped.set)
            running.result(START_DEADLINE_S)


@contextmanager
def serving(folder: Path, scratch: Path, *, api_key: str = "secret", **settings: object) -> Iterator[EngineClient]:
    """A running engine for the model in `folder`; it must exit cleanly on SIGTERM."""
    ready = scratch / f"ready-{time.monotonic_ns()}.json"
    command = engine_command({"port": 0, "model_path": folder, **settings}, "--ready-file", str(ready))
    process = subprocess.Popen(command, env=engine_environment(api_key), stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None, limit_s=START_DEADLINE_S)
        assert process.poll() is None, process.communicate()[1]
        client = EngineClient(base_url=json.loads(ready.read_text())["url"], api_key=api_key)
        yield client
        client.pool.shutdown(wait=False)
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors, errors
