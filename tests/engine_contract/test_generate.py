"""What any engine of this dialect promises about sampling. Runs against the embedded engine and a real SGLang alike."""

import random
from typing import Any

import pytest

from tests.engine_contract.contract import Contract
from tests.local_engine.engine_process import EngineClient
from tests.local_engine.tiny_models import VOCAB_SIZE, chosen_logprobs, reference_logprobs


def prompt_of(num_tokens: int, seed: int = 0) -> list[int]:
    # SGLang lists the vocabulary's last id as 0 among the logprobs of a prompt: it takes it for padding.
    return [random.Random(f"{seed}-{index}").randrange(2, VOCAB_SIZE - 1) for index in range(num_tokens)]


def output_logprobs(reply: dict[str, Any]) -> list[float]:
    return [logprob for logprob, _, _ in reply["meta_info"]["output_token_logprobs"]]


def assert_exact(contract: Contract, prompt: list[int], reply: dict[str, Any], *, version: str = "v0") -> None:
    expected = chosen_logprobs(contract.models[version], prompt, reply["output_ids"])
    assert output_logprobs(reply) == pytest.approx(expected, abs=contract.tolerance)


def test_ids_and_logprobs_are_parallel_and_equal_transformers(contract: Contract) -> None:
    prompt = prompt_of(20)
    reply = contract.client.generate(prompt, max_new_tokens=30, ignore_eos=True)
    triples = reply["meta_info"]["output_token_logprobs"]
    assert [token_id for _, token_id, _ in triples] == reply["output_ids"]
    assert reply["meta_info"]["completion_tokens"] == 30
    assert reply["meta_info"]["prompt_tokens"] == 20
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 30}
    assert_exact(contract, prompt, reply)


@pytest.mark.parametrize("temperature", [0.6, 1.3])
def test_logprobs_are_those_after_temperature(contract: Contract, temperature: float) -> None:
    prompt = prompt_of(12, seed=1)
    reply = contract.client.generate(prompt, max_new_tokens=10, ignore_eos=True, temperature=temperature)
    expected = chosen_logprobs(contract.models["v0"], prompt, reply["output_ids"], temperature=temperature)
    assert output_logprobs(reply) == pytest.approx(expected, abs=contract.tolerance)


def test_temperature_zero_is_greedy_with_plain_logprobs(contract: Contract) -> None:
    prompt = prompt_of(9, seed=2)
    reply = contract.client.generate(prompt, max_new_tokens=8, ignore_eos=True, temperature=0)
    table = reference_logprobs(contract.models["v0"], prompt + reply["output_ids"])[len(prompt) - 1 : -1]
    assert table.argmax(-1).tolist() == reply["output_ids"]
    assert output_logprobs(reply) == pytest.approx(table.max(-1).values.tolist(), abs=contract.tolerance)


def test_a_stop_token_ends_the_completion_and_is_part_of_it(client: EngineClient) -> None:
    prompt = prompt_of(7, seed=3)
    free = client.generate(prompt, max_new_tokens=12, ignore_eos=True, temperature=0)["output_ids"]
    stop = free[4]
    reply = client.generate(prompt, max_new_tokens=12, temperature=0, stop_token_ids=[stop])
    assert reply["output_ids"] == free[: free.index(stop) + 1]
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


def test_min_new_tokens_holds_a_stop_token_back(client: EngineClient) -> None:
    prompt = prompt_of(7, seed=3)
    stop = client.generate(prompt, max_new_tokens=1, ignore_eos=True, temperature=0)["output_ids"][0]
    reply = client.generate(prompt, max_new_tokens=6, min_new_tokens=3, temperature=0, stop_token_ids=[stop])
    assert stop not in reply["output_ids"][:3]


def test_prompt_logprobs_score_a_given_text(contract: Contract) -> None:
    prompt = prompt_of(40, seed=4)
    fields = {"logprob_start_len": 0}
    reply = contract.client.generate(prompt, max_new_tokens=1, ignore_eos=True, body=fields)
    triples = reply["meta_info"]["input_token_logprobs"]
    assert triples[0][0] is None
    assert [token_id for _, token_id, _ in triples] == prompt
    expected = chosen_logprobs(contract.models["v0"], prompt[:1], prompt[1:])
    assert [logprob for logprob, _, _ in triples[1:]] == pytest.approx(expected, abs=contract.tolerance)


def test_prompt_logprobs_can_start_later_even_on_a_cached_prompt(contract: Contract) -> None:
    prompt = prompt_of(40, seed=5)
    contract.client.generate(prompt, max_new_tokens=1, ignore_eos=True)
    reply = contract.client.generate(prompt, max_new_tokens=1, ignore_eos=True, body={"logprob_start_len": 30})
    triples = reply["meta_info"]["input_token_logprobs"]
    expected = chosen_logprobs(contract.models["v0"], prompt[:31], prompt[31:])
    assert [logprob for logprob, _, _ in triples[1:]] == pytest.approx(expected, abs=contract.tolerance)


def test_top_logprobs_list_the_best_tokens_in_order(contract: Contract) -> None:
    prompt = prompt_of(11, seed=6)
    reply = contract.client.generate(
        prompt, max_new_tokens=3, ignore_eos=True, temperature=0, body={"top_logprobs_num": 3}
    )
    table = reference_logprobs(contract.models["v0"], prompt + reply["output_ids"])[len(prompt) - 1 : -1]
    for row, alternatives in zip(table, reply["meta_info"]["output_top_logprobs"], strict=True):
        best = row.topk(3)
        assert [logprob for logprob, _, _ in alternatives] == pytest.approx(
            best.values.tolist(), abs=contract.tolerance
        )


def test_a_batch_and_several_samples_come_back_as_a_list(client: EngineClient) -> None:
    prompts = [prompt_of(5, seed=7), prompt_of(9, seed=8)]
    batch = client.generate(prompts, max_new_tokens=2, ignore_eos=True)
    assert [reply["meta_info"]["prompt_tokens"] for reply in batch] == [5, 9]
    samples = client.generate(prompts[0], max_new_tokens=12, ignore_eos=True, n=3)
    assert len({tuple(reply["output_ids"]) for reply in samples}) == 3


def test_64_ragged_requests_at_once_are_all_exact(contract: Contract) -> None:
    prompts = [prompt_of(3 + 5 * index, seed=index) for index in range(64)]
    started = [contract.client.start(prompt, max_new_tokens=16, ignore_eos=True) for prompt in prompts]
    for prompt, reply in zip(prompts, started, strict=True):
        assert_exact(contract, prompt, reply.result())


def test_a_turn_that_extends_a_finished_one_reuses_its_prefix_and_stays_exact(contract: Contract) -> None:
    context = prompt_of(60, seed=9)
    for turn in range(5):
        reply = contract.client.generate(context, max_new_tokens=12, ignore_eos=True)
        assert_exact(contract, context, reply)
        if turn:
            assert reply["meta_info"]["cached_tokens"] >= len(context) - 20
        context = context + reply["output_ids"] + prompt_of(16, seed=100 + turn)


def test_group_members_share_a_prompt_and_stay_exact(contract: Contract) -> None:
    shared = prompt_of(150, seed=10)
    started = [contract.client.start([*shared, 5 + member], max_new_tokens=10, ignore_eos=True) for member in range(8)]
    replies = [future.result() for future in started]
    for member, reply in enumerate(replies):
        assert_exact(contract, [*shared, 5 + member], reply)
    later = contract.client.generate([*shared, 99], max_new_tokens=10, ignore_eos=True)
    assert later["meta_info"]["cached_tokens"] >= 140
    assert_exact(contract, [*shared, 99], later)


def test_a_repeated_prompt_is_never_cached_as_a_whole(client: EngineClient) -> None:
    prompt = prompt_of(50, seed=11)
    client.generate(prompt, max_new_tokens=1, ignore_eos=True)
    reply = client.generate(prompt, max_new_tokens=1, ignore_eos=True)
    assert reply["meta_info"]["cached_tokens"] == 49


def test_a_cache_salt_separates_prefixes(client: EngineClient) -> None:
    prompt = prompt_of(50, seed=12)
    client.generate(prompt, max_new_tokens=1, ignore_eos=True, body={"cache_salt": "one"})
    other = client.generate(prompt, max_new_tokens=1, ignore_eos=True, body={"cache_salt": "two"})
    assert other["meta_info"]["cached_tokens"] == 0


def test_an_unknown_sampling_field_is_refused_naming_the_allowed_ones(client: EngineClient) -> None:
    refusal = client.generate([5, 6], expect=400, temprature=1.0)
    assert "temprature" in str(refusal)
    assert "temperature" in str(refusal).replace("temprature", "")


def test_an_overlong_prompt_is_refused(client: EngineClient) -> None:
    assert client.generate([5] * 5000, expect=400, max_new_tokens=1)["error"]["message"]
    client.generate([5, 6], max_new_tokens=1)
