"""A pretrained model plays long episodes on a real SGLang through the pool; what it saw and said is what is kept."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import pytest
import torch
import transformers
from tokenizers import Tokenizer

from clients.config import SglangConfig
from clients.policies.base import Completion
from clients.policies.engines import Engine, EngineRegistry
from clients.policies.sglang import SglangPolicy
from clients.renderer import load_tag_renderer
from longturn.metrics import Metrics
from longturn.records import SamplingParams, Task, Trajectory
from longturn.tag_format import TAGS
from tests.clients.daemons import server_process
from tests.clients.scripted_learner import ScriptedLearner, group, rules
from tests.clients.test_pool import parts_of
from tests.local_engine.tiny_models import chosen_logprobs
from tests.support.recording_proxy import RecordingProxy, recording
from tests.support.sglang_server import ROOT, SglangServer, sglang_python, sglang_server

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(3600)]

NUM_TURNS = 30
NUM_GROUPS = 2
GROUP_SIZE = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct with the five tags."""
    out = tmp_path_factory.mktemp("smollm2") / "model"
    command = [str(sglang_python()), str(ROOT / "tests" / "support" / "smollm2.py"), str(out), *TAGS]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return out


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangServer]:
    log = tmp_path_factory.mktemp("sglang") / "server.log"
    options = ["--weight-version", "0"]
    with sglang_server(model, log, max_total_tokens=60_000, max_running_requests=8, options=options) as running:
        yield running


def test_eight_episodes_of_thirty_turns_are_kept_byte_for_byte(
    server: SglangServer, model: Path, tmp_path: Path
) -> None:
    renderer = load_tag_renderer(model, max_observation_tokens=96)
    task = Task(environment="textworld", task_id="coin_collector/level=116/train/000000")

    async def main(address: str) -> tuple[list[Trajectory], RecordingProxy]:
        groups = [group(f"g{index}", task, size=GROUP_SIZE, seed=index) for index in range(NUM_GROUPS)]
        play = rules(max_new_tokens=16, max_episode_tokens=6000, max_turns=NUM_TURNS)
        async with recording(server.url) as proxy:
            with ScriptedLearner(tmp_path, groups=groups, engine_urls=[proxy.url], play=play) as learner:
                async with parts_of(
                    address,
                    renderer,
                    learner.address,
                    tmp_path,
                    num_actors=NUM_GROUPS * GROUP_SIZE,
                    turn_budget_s=600.0,
                    request_timeout_s=600.0,
                ) as parts:
                    assert await parts.pool.run() == "COMPLETED"
        assert not learner.failed
        return learner.trajectories, proxy

    with server_process(tmp_path / "env", environments=["textworld"]) as env_server:
        trajectories, proxy = asyncio.run(main(env_server.address))
    assert len(trajectories) == NUM_GROUPS * GROUP_SIZE
    num_cached = num_prompt = 0
    for trajectory in trajectories:
        assert len(trajectory.turns) == NUM_TURNS
        assert trajectory.engine is not None
        assert (trajectory.engine.name, trajectory.engine.version) == ("sglang", "0.5.23")
        exchanges = proxy.of(key_of(trajectory))
        assert len(exchanges) == NUM_TURNS
        history: list[int] = []
        for turn, (asked, answered) in zip(trajectory.turns, exchanges, strict=True):
            history += turn.prompt_ids
            assert asked["input_ids"] == history
            num_sampled = len(turn.completion_ids) - turn.num_synthetic_tokens
            triples = answered["meta_info"]["output_token_logprobs"]
            assert list(turn.completion_ids[:num_sampled]) == [index for _, index, _ in triples]
            assert answered["output_ids"] == [index for _, index, _ in triples]
            assert list(turn.behavior_logprobs[:num_sampled]) == pytest.approx([value for value, _, _ in triples])
            history += turn.completion_ids
            num_cached += answered["meta_info"]["cached_tokens"]
            num_prompt += len(asked["input_ids"])
    assert num_cached / num_prompt > 0.8


def key_of(trajectory: Trajectory) -> str:
    """As the pool names an episode towards the engine."""
    assert trajectory.identity is not None
    identity = trajectory.identity
    return f"{identity.group_id}.{identity.attempt}.{identity.member_index}.{trajectory.retry_index}"


def complete(server: SglangServer, prompt: list[int], *, num_tokens: int, **settings: str) -> Completion:
    """One turn by the pool's policy."""

    async def main() -> Completion:
        engines = EngineRegistry([Engine(url=server.url)])
        config = SglangConfig.model_validate({"request_timeout_s": 600.0, **settings})
        sampling = SamplingParams(temperature=1.0, max_new_tokens=num_tokens, seed=3)
        async with SglangPolicy(config, engines=engines, stop_token_ids=(), metrics=Metrics()) as policy:
            return await policy.complete(prompt, sampling, episode_key="one", turn_index=0)

    return asyncio.run(main())


def test_logprobs_in_bfloat16_are_as_near_to_the_truth_as_those_of_transformers(
    server: SglangServer, model: Path
) -> None:
    prompt = Tokenizer.from_file(str(model / "tokenizer.json")).encode("You stand in a kitchen. There is a door").ids
    completion = complete(server, prompt, num_tokens=32)
    exact, rounded = (
        chosen_logprobs(
            transformers.AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval(), prompt, completion.token_ids
        )
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert mean_gap(completion.logprobs, exact) < 1.5 * mean_gap(rounded, exact)


def mean_gap(some: Sequence[float], others: Sequence[float]) -> float:
    return fmean(abs(one - other) for one, other in zip(some, others, strict=True))


def test_a_grammar_holds(server: SglangServer, model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    prompt = tokenizer.encode("You stand in a kitchen. You go").ids
    for _ in range(3):
        completion = complete(server, prompt, num_tokens=12, regex="(north|south|east|west)")
        assert tokenizer.decode(list(completion.token_ids)) in ("north", "south", "east", "west")
        prompt += completion.token_ids
