"""A scripted peer that speaks the engine dialect over real HTTP, with tokens made by a function instead of a model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from tokenizers import Tokenizer

Script = Callable[["Ask"], Sequence[int]]


@dataclass(frozen=True)
class Ask:
    """One request as the engine saw it."""

    rid: str
    input_ids: tuple[int, ...]
    sampling: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)
    cache_salt: str = ""

    @property
    def episode_key(self) -> str:
        return self.rid.rpartition(":")[0].rpartition(":")[0].rpartition(":")[0]


@dataclass(frozen=True)
class Answer:
    """Tokens of a reply, and how it deviates from an ordinary one."""

    ids: tuple[int, ...]
    finish: dict[str, Any] = field(default_factory=lambda: {"type": "stop", "matched": 0})
    versions: tuple[tuple[str, int, int], ...] | None = None
    logprob: float = -0.5


class ScriptedEngine:
    """Keeps every request and every reply; `interfere` may change or drop a reply."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.asks: list[Ask] = []
        self.answers: list[Answer] = []
        self.weight_version = "0"
        self.interfere: Callable[[Ask, Answer], Answer | web.Response | None] = lambda ask, answer: answer
        """None drops the reply: the connection stays open and silent until the client hangs up."""
        self.url = ""
        self.hold = asyncio.Event()
        self.hold.set()
        self.info: object = {"engine": "scripted", "version": "7", "logprobs": "after temperature"}
        """What /server_info says; None: it answers 500."""
        self.num_info_asks = 0
        self.is_tempered = True
        """Whether logprobs are those after temperature, for an engine whose `info` does not say."""
        self.num_probes = 0

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if "top_logprobs_num" in body:
            return self._probed(body)
        ask = Ask(
            body["rid"],
            tuple(body["input_ids"]),
            body["sampling_params"],
            dict(request.headers),
            body.get("cache_salt", ""),
        )
        assert body["return_logprob"] is True
        self.asks.append(ask)
        await self.hold.wait()
        ids = tuple(self._script(ask))
        limit = ask.sampling["max_new_tokens"]
        finish: dict[str, Any] = {"type": "stop", "matched": ids[-1]} if len(ids) <= limit else {"type": "length"}
        answer = self.interfere(ask, Answer(ids[:limit], finish))
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, web.Response):
            return answer
        assert answer is not None
        self.answers.append(answer)
        return web.json_response(self._reply(ask, answer))

    def _probed(self, body: dict[str, Any]) -> web.Response:
        self.num_probes += 1
        divisor = body["sampling_params"]["temperature"] if self.is_tempered else 1.0
        top = [[-rank / divisor, rank, None] for rank in range(body["top_logprobs_num"])]
        return web.json_response({"meta_info": {"output_top_logprobs": [top]}})

    def _reply(self, ask: Ask, answer: Answer) -> dict[str, Any]:
        num = len(answer.ids)
        versions = answer.versions or ((self.weight_version, 0, num),)
        return {
            "output_ids": list(answer.ids),
            "text": "never read",
            "meta_info": {
                "id": ask.rid,
                "finish_reason": answer.finish,
                "prompt_tokens": len(ask.input_ids),
                "completion_tokens": num,
                "cached_tokens": 3,
                "weight_version": versions[-1][0],
                "weight_versions": [{"version": v, "start": start, "end": end} for v, start, end in versions],
                "output_token_logprobs": [[answer.logprob, index, None] for index in answer.ids],
            },
        }

    async def server_info(self, request: web.Request) -> web.Response:
        self.num_info_asks += 1
        return refuse(500) if self.info is None else web.json_response(self.info)


@asynccontextmanager
async def serving_engine(script: Script) -> AsyncIterator[ScriptedEngine]:
    """A scripted engine on a free port."""
    engine = ScriptedEngine(script)
    app = web.Application(client_max_size=64 * 2**20)
    app.add_routes([web.post("/generate", engine.generate), web.get("/server_info", engine.server_info)])
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield engine
    finally:
        await runner.cleanup()


def echo_script(tokenizer_path: Path) -> Script:
    """Says the word that an echo observation asks for, in the plain tag format."""
    tokenizer = Tokenizer.from_file(str(tokenizer_path))

    def answer(ask: Ask) -> list[int]:
        text = tokenizer.decode(list(ask.input_ids), skip_special_tokens=False)
        observation, _, begun = text.rpartition("<think>")
        word = observation.rpartition("<obs>")[2].partition("Say ")[2].partition(".")[0]
        whole = f"asked for {word}</think><action>{word}</action>"
        return tokenizer.encode(whole.removeprefix(begun), add_special_tokens=False).ids

    return answer


def refuse(status: int) -> web.Response:
    """An HTTP failure."""
    return web.Response(status=status, text=json.dumps({"error": {"message": "no"}}))
