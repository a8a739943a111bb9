"""Outside agents on chat completions: what they were given is what the learner gets, id for id."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from clients.assignment import PlayRules
from clients.config import ProxyConfig
from clients.proxy.completions import ChatRequestError, parse_request
from clients.proxy.outside import Door, OutsideAgent, OverError
from clients.proxy.transcript import Message, Transcript
from clients.rendering.chat import Reasoning
from learner.rows import build_rows
from longturn.errors import EpisodeError
from longturn.metrics import Metrics
from longturn.records import EndCause, EpisodeStatus, RenderMode, SamplingParams, StepResult, Task
from tests.clients.conversations import chat_format
from tests.clients.daemons import ROOT
from tests.clients.scripted_engine import Ask, ScriptedEngine, serving_engine
from tests.clients.scripted_learner import ScriptedLearner, group, rules
from tests.support.waiting import until

CHAT = chat_format("qwen2.5", reasoning=Reasoning.FREE)
END = "<|im_end|>"


def _echo(index: int = 3) -> Task:
    knobs = {"horizon": 3, "observation_bytes": 80}
    return Task(environment="echo", task_id=f"echo/train/{index:06d}", knobs=knobs)


def _says_the_word(ask: Ask) -> list[int]:
    """Answers the newest question with the word that it asks for."""
    tokenizer = CHAT.encoder.tokenizer
    text = tokenizer.decode(list(ask.input_ids), skip_special_tokens=False)
    word = text.rpartition("Say ")[2].partition(".")[0]
    return tokenizer.encode(f"{word}{END}", add_special_tokens=False).ids


@dataclass
class Proxy:
    """A running proxy, and what it stands between."""

    url: str
    http: aiohttp.ClientSession
    learner: ScriptedLearner
    engine: ScriptedEngine
    process: asyncio.subprocess.Process

    async def post(self, path: str, body: object, *, expect: int = 200, **headers: str) -> Any:
        url = path if path.startswith("http") else f"{self.url}{path}"
        async with self.http.post(url, data=json.dumps(body), headers=headers) as response:
            text = await response.text()
            assert response.status == expect, text
            return json.loads(text)

    async def ask(self, base_url: str, *texts: str, expect: int = 200, **fields: object) -> Any:
        """Alternate user and assistant."""
        roles = ("user", "assistant")
        messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]
        body = {"model": "policy", "messages": messages, **fields}
        return await self.post(f"{base_url}/chat/completions", body, expect=expect)


@contextlib.asynccontextmanager
async def _proxy(address: str, folder: Path, groups: list[Any], *settings: str, **play: object) -> AsyncIterator[Proxy]:
    tokenizer = folder / "tokenizer.json"
    CHAT.encoder.tokenizer.save(str(tokenizer))
    ready = folder / "ready.json"
    async with serving_engine(_says_the_word) as engine:
        with ScriptedLearner(folder, groups=groups, engine_urls=[engine.url], play=rules(**play)) as learner:
            chosen = [
                f"dispatch.address={learner.address}",
                f"env_server.address={address}",
                f"renderer.tokenizer={tokenizer}",
                f"run_dir={folder / 'run'}",
                *settings,
            ]
            words = [word for setting in chosen for word in ("--set", setting)]
            command = [sys.executable, "-m", "longturn", "proxy", *words, "--ready-file", str(ready)]
            process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stderr=asyncio.subprocess.PIPE)
            try:
                await until(ready.exists, limit_s=60)
                url = json.loads(ready.read_text())["url"]
                async with aiohttp.ClientSession() as http:
                    yield Proxy(url, http, learner, engine, process)
            finally:
                if process.returncode is None:
                    process.terminate()
                _, errors = await process.communicate()
                assert b"Traceback" not in errors, errors.decode()


async def _play_plainly(proxy: Proxy, episode: dict[str, Any]) -> dict[str, Any]:
    """An agent that keeps the whole conversation."""
    texts, seen = [episode["observation"]], episode
    while seen["status"] == "RUNNING":
        reply = await proxy.ask(episode["base_url"], *texts)
        said = reply["choices"][0]["message"]["content"]
        seen = await proxy.post(f"/episodes/{episode['key']}/step", {"action": said})
        texts += [said, seen["observation"]]
    return seen


def test_an_agent_on_chat_completions_is_trained_on_what_the_engine_saw_and_sampled(
    address: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with _proxy(address, tmp_path, [group("g0", _echo(), size=2)]) as proxy:
            for _ in range(2):
                episode = await proxy.post("/episodes?wait_s=30", {})
                assert episode["task_id"] == "echo/train/000003"
                seen = await _play_plainly(proxy, episode)
                assert (seen["status"], seen["success"], seen["score"]) == ("TERMINATED", True, 1.0)
            assert await asyncio.wait_for(proxy.process.wait(), 30) == 0
        members = proxy.learner.members("g0")
        assert sorted(members) == [0, 1]
        asks = iter(proxy.engine.asks)
        for member in members.values():
            assert (member.status, member.success, member.episode_return) == (EpisodeStatus.TERMINATED, True, 1.0)
            assert member.render_mode is RenderMode.WINDOW
            assert [turn.reward for turn in member.turns] == pytest.approx([1 / 3] * 3)
            for turn in member.turns:
                ask = next(asks)
                assert turn.prompt_ids == ask.input_ids
                assert turn.completion_ids == tuple(_says_the_word(ask))
                assert turn.num_synthetic_tokens == 0
                assert [span.policy_version for span in turn.policy_spans] == [0]
                assert turn.behavior_logprobs == (-0.5,) * len(turn.completion_ids)
            rows = build_rows(member, vocabulary_size=9999, max_row_tokens=9999).rows
            assert len(rows) == 1  # the whole conversation is one row: nothing was encoded again
        assert {member.sampling.seed for member in members.values() if member.sampling} == {100, 101}

    asyncio.run(main())


def test_what_an_agent_asks_between_two_actions_is_turns_too(address: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with _proxy(address, tmp_path, [group("g0", _echo(), size=1)], max_turns=2) as proxy:
            episode = await proxy.post("/episodes?wait_s=30", {})
            await proxy.ask(episode["base_url"], "Make a plan. Say plan.")
            first = await proxy.ask(episode["base_url"], episode["observation"])
            said = first["choices"][0]["message"]["content"]
            seen = await proxy.post(f"/episodes/{episode['key']}/step", {"action": said})
            await proxy.ask(episode["base_url"], seen["observation"])
            seen = await proxy.post(f"/episodes/{episode['key']}/step", {"action": "something else"})
            assert (seen["status"], seen["success"]) == ("TRUNCATED", False)
            await asyncio.wait_for(proxy.process.wait(), 30)
        (member,) = proxy.learner.members("g0").values()
        assert [turn.action for turn in member.turns] == ["", said, "something else"]
        assert [turn.reward for turn in member.turns] == pytest.approx([0.0, 1 / 3, 0.0])
        assert member.turns[0].state_hash == member.initial_state_hash
        assert (member.end_cause, member.episode_return) == (EndCause.TURN_LIMIT, pytest.approx(1 / 3))
        assert len(build_rows(member, vocabulary_size=9999, max_row_tokens=9999).rows) == 3

    asyncio.run(main())


def test_what_the_agent_does_wrong_is_said_and_costs_no_episode(address: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with _proxy(address, tmp_path, [group("g0", _echo(), size=1)]) as proxy:
            episode = await proxy.post("/episodes?wait_s=30", {})
            step = f"/episodes/{episode['key']}/step"
            assert (await proxy.post("/episodes?wait_s=0", {}, expect=503))["error"]["code"] == "NO_EPISODE"
            assert (await proxy.post(step, {"action": "x"}, expect=409))["error"]["code"] == "NO_COMPLETION"
            assert "action" in (await proxy.post(step, {}, expect=400))["error"]["message"]
            assert (await proxy.post("/episodes/none/step", {"action": "x"}, expect=410))["error"]["message"]
            refused = await proxy.ask(episode["base_url"], "hi", expect=400, tools=[{"type": "function"}])
            assert "tools is not supported" in refused["error"]["message"]
            await _play_plainly(proxy, episode)
            await asyncio.wait_for(proxy.process.wait(), 30)
        assert len(proxy.learner.trajectories) == 1

    asyncio.run(main())


def test_a_key_a_stream_stops_and_budgets_work_as_clients_expect(address: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with _proxy(address, tmp_path, [group("g0", _echo(), size=1)], max_new_tokens=20) as proxy:
            episode = await proxy.post("/episodes?wait_s=30", {})
            body = {
                "messages": [{"role": "user", "content": [{"type": "text", "text": episode["observation"]}]}],
                "stream": True,
                "stop": ["\n"],
                "max_tokens": 500,
                "temperature": 0.2,
                "logprobs": True,
            }
            headers = {"Authorization": f"Bearer {episode['key']}"}
            async with proxy.http.post(f"{proxy.url}/v1/chat/completions", json=body, headers=headers) as response:
                events = [line[6:] async for line in response.content if line.startswith(b"data: ")]
            assert events[-1].strip() == b"[DONE]"
            chunks = [json.loads(event) for event in events[:-1]]
            assert chunks[0]["choices"][0]["delta"]["content"]
            assert chunks[0]["longturn"] == {"decided_by_run": ["temperature"]}
            assert chunks[1]["choices"][0]["logprobs"]["content"][0]["logprob"] == -0.5
            assert chunks[2]["usage"]["prompt_tokens"] == len(proxy.engine.asks[0].input_ids)
            sampling = proxy.engine.asks[0].sampling
            assert (sampling["stop"], sampling["max_new_tokens"], sampling["temperature"]) == (["\n"], 20, 1.0)
            await proxy.post(f"/episodes/{episode['key']}/abandon", {"reason": "enough"})
            again = await proxy.post("/episodes?wait_s=30", {})
            assert again["key"] != episode["key"]
            await _play_plainly(proxy, again)
            await asyncio.wait_for(proxy.process.wait(), 30)
        (member,) = proxy.learner.members("g0").values()
        assert (member.retry_index, member.success) == (1, True)

    asyncio.run(main())


def test_an_agent_that_went_away_or_outgrew_its_budget_loses_no_group(address: str, tmp_path: Path) -> None:
    async def main() -> None:
        settings = ("idle_s=2",)
        async with _proxy(
            address, tmp_path, [group("g0", _echo(), size=1)], *settings, max_episode_tokens=400
        ) as proxy:
            left = await proxy.post("/episodes?wait_s=30", {})
            episode = await proxy.post("/episodes?wait_s=30", {})
            assert episode["key"] != left["key"]
            refused = await proxy.ask(episode["base_url"], "x " * 400, expect=410)
            assert refused["error"]["code"] == "context_length_exceeded"
            assert "learner.play.max_episode_tokens" in refused["error"]["message"]
            await until(lambda: bool(proxy.learner.trajectories), limit_s=30)
        (member,) = proxy.learner.trajectories
        assert (member.end_cause, member.retry_index, len(member.turns)) == (EndCause.TOKEN_LIMIT, 1, 0)

    asyncio.run(main())


def _agent(policy: object, **changes: object) -> OutsideAgent:
    options = {"max_episode_tokens": 0, "temperature": 1.0, "max_new_tokens": 32, "max_turns": 0, "max_episode_s": 0.0}
    play = PlayRules(**{**options, "max_group_s": 0.0, "with_progress": False, "max_member_retries": 0})  # type: ignore[arg-type]
    sampling = SamplingParams(max_new_tokens=32)
    return OutsideAgent(policy, CHAT, sampling, play, episode_key="e", idle_s=5.0, metrics=Metrics(), **changes)  # type: ignore[arg-type]


def test_history_that_was_sampled_keeps_its_ids_and_rewritten_history_is_encoded() -> None:
    transcript = Transcript(CHAT)
    asked = (Message("system", "Play."), Message("user", "one"))
    first = transcript.prompt(asked)
    letters = tuple(index for letter in "go east" for index in CHAT.encoder.spell(letter))
    sampled = (*letters, CHAT.stop_token_ids[0])
    transcript.remember(asked, "go east", first + sampled)
    later = (*asked, Message("assistant", "go east"), Message("user", "two"))
    assert transcript.prompt(later)[: len(first) + len(sampled)] == first + sampled
    text = CHAT.encoder.tokenizer.decode(list(transcript.prompt(later)), skip_special_tokens=False)
    assert text == (
        f"<|im_start|>system\nPlay.{END}\n<|im_start|>user\none{END}\n<|im_start|>assistant\ngo east{END}\n"
        f"<|im_start|>user\ntwo{END}\n<|im_start|>assistant\n"
    )
    rewritten = (*asked, Message("assistant", "I went"), Message("user", "two"))
    assert transcript.prompt(rewritten)[: len(first) + len(sampled)] != first + sampled


def test_without_a_system_message_the_template_speaks_for_itself() -> None:
    text = CHAT.encoder.tokenizer.decode(list(Transcript(CHAT).prompt([Message("user", "hi")])), False)
    assert text.startswith("<|im_start|>system\nYou are Qwen, created by Alibaba Cloud.")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "no JSON"),
        (b"[]", "no JSON object"),
        (b"{}", "messages must be a list"),
        (b'{"messages": [{"role": "tool", "content": "x"}]}', "one of the roles"),
        (b'{"messages": [{"role": "user", "content": 3}]}', "must be text"),
        (b'{"messages": [{"role": "user", "content": [{"type": "image"}]}]}', "must be text"),
        (b'{"messages": [{"role": "assistant", "content": "x"}]}', "answers a user's message"),
        (b'{"messages": [{"role": "user", "content": "x"}], "n": 2}', "n must be 1"),
        (b'{"messages": [{"role": "user", "content": "x"}], "stop": [""]}', "stop must be"),
        (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 0.5}', "max_tokens must be"),
    ],
)
def test_a_request_that_cannot_be_served_says_why(body: bytes, message: str) -> None:
    with pytest.raises(ChatRequestError, match=message):
        parse_request(body)


def test_a_claim_that_nobody_waits_for_any_more_is_passed_over() -> None:
    async def main() -> None:
        door = Door()
        assert await door.claim(0.01) is None
        waiting = asyncio.create_task(door.claim(5.0))
        claim = await door.next_claim()
        door.give_back(claim)
        claim = await door.next_claim()
        agent = _agent(policy=None)
        door.hand_over(agent, claim)
        assert await waiting is agent
        assert door.find(agent.key) is agent
        door.forget(agent)
        assert door.find(agent.key) is None

    asyncio.run(main())


def test_an_agent_whose_episode_is_over_is_told_so() -> None:
    async def main() -> None:
        agent = _agent(policy=None)
        agent.close(EpisodeError("the server is gone", reason="EPISODE_LOST"))
        asked = parse_request(b'{"messages": [{"role": "user", "content": "more?"}]}')
        with pytest.raises(OverError, match="the server is gone") as caught:
            await agent.complete(asked)
        assert caught.value.reason == "EPISODE_LOST"
        with pytest.raises(OverError):
            await agent.step("look")

    asyncio.run(main())


def test_a_silent_agent_ends_its_episode_with_the_setting() -> None:
    async def main() -> None:
        agent = _agent(policy=None)
        agent._idle_s = 0.05
        with pytest.raises(Exception, match=r"silent for 0\.05 s \(proxy\.idle_s\)"):
            await agent.act(StepResult(observation="one"))

    asyncio.run(main())


def test_settings_that_say_what_prompts_hold_are_refused() -> None:
    for setting, message in ({"format": "plain"}, "'qwen2.5'"), ({"history": "strip"}, "must be 'append'"):
        with pytest.raises(ValueError, match=message):
            ProxyConfig.model_validate({"renderer": setting})
    assert ProxyConfig.model_validate({"renderer": {"tokenizer": "x"}}).renderer.reasoning == "free"


def test_the_pydantic_ai_example_plays_a_run_to_its_end(address: str, tmp_path: Path) -> None:
    pytest.importorskip("pydantic_ai")
    pytest.importorskip("openai")

    async def main() -> None:
        async with _proxy(address, tmp_path, [group("g0", _echo(), size=2)]) as proxy:
            example = str(ROOT / "examples" / "train_pydantic_ai.py")
            command = [sys.executable, example, proxy.url]
            playing = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            said, errors = await asyncio.wait_for(playing.communicate(), 110)
            assert playing.returncode == 0, errors.decode()
            assert said.decode().splitlines().count("echo/train/000003: won after 3 turns") == 2
        members = proxy.learner.members("g0")
        assert all(member.success for member in members.values())
        rows = [build_rows(member, vocabulary_size=9999, max_row_tokens=9999).rows for member in members.values()]
        assert [len(each) for each in rows] == [1, 1]

    asyncio.run(main())
