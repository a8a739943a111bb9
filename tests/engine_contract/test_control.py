"""What any engine of this dialect promises about pauses, aborts and weight updates."""

import itertools
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import pytest

from tests.engine_contract.contract import MAX_QUEUED, NUM_RUNNING, Contract
from tests.engine_contract.test_generate import assert_exact, output_logprobs, prompt_of
from tests.local_engine.engine_process import EngineClient
from tests.local_engine.tiny_models import chosen_logprobs
from tests.support.waiting import wait_until

LONG = 1500


def start_long(client: EngineClient, num: int = 1, *, num_tokens: int = LONG) -> list[Future[Any]]:
    """Requests that decode for a while, all running when this returns."""
    started = [
        client.start(prompt_of(20, seed=50 + index), rid=f"long-{index}", max_new_tokens=num_tokens, ignore_eos=True)
        for index in range(num)
    ]
    wait_until(lambda: client.num_running() == num)
    return started


def num_generated(client: EngineClient) -> int:
    return int(client.get("/v1/loads?include=core")["loads"][0]["num_used_tokens"])


def test_in_place_pause_freezes_and_continue_resumes_without_a_hole(contract: Contract) -> None:
    client = contract.client
    (running,) = start_long(client, num_tokens=200)
    client.post("/pause_generation", {"mode": "in_place"})
    assert num_generated(client) == num_generated(client)
    assert not running.done()
    client.post("/continue_generation")
    reply = running.result()
    assert reply["meta_info"]["completion_tokens"] == 200
    assert_exact(contract, prompt_of(20, seed=50), reply)


def test_abort_pause_answers_200_with_the_partial_completion(contract: Contract) -> None:
    client = contract.client
    started = start_long(client, 4)
    client.post("/pause_generation", {"mode": "abort"})
    for index, future in enumerate(started):
        reply = future.result()
        assert reply["meta_info"]["finish_reason"]["type"] == "abort"
        assert len(reply["output_ids"]) == reply["meta_info"]["completion_tokens"] < LONG
        assert_exact(contract, prompt_of(20, seed=50 + index), reply)


def test_a_request_that_arrives_during_a_pause_runs_after_it(client: EngineClient) -> None:
    client.post("/pause_generation", {"mode": "abort"})
    # SGLang does not count a request among its loads that a pause holds back, so it is sent without a wait for a sign.
    with client.sent([5, 6, 7], max_new_tokens=3, ignore_eos=True) as waiting:
        client.get("/model_info")
        assert not waiting.has_answer()
        client.post("/continue_generation")
        assert waiting.reply()["meta_info"]["completion_tokens"] == 3


def test_retract_then_update_recomputes_running_requests_under_the_new_weights(contract: Contract) -> None:
    client = contract.client
    (running,) = start_long(client, num_tokens=300)
    client.post("/pause_generation", {"mode": "retract"})
    client.update("v1", "7")
    client.post("/continue_generation")
    reply = running.result()
    spans = reply["meta_info"]["weight_versions"]
    assert [span["version"] for span in spans] == ["0", "7"]
    assert (spans[0]["start"], spans[-1]["end"]) == (0, 300)
    seam = spans[0]["end"]
    assert spans[1]["start"] == seam
    assert reply["meta_info"]["num_retractions"] >= 1
    prompt = prompt_of(20, seed=50)
    both = [chosen_logprobs(contract.models[name], prompt, reply["output_ids"]) for name in ("v0", "v1")]
    assert output_logprobs(reply) == pytest.approx(both[0][:seam] + both[1][seam:], abs=contract.tolerance)


def test_in_place_update_without_flush_goes_on_and_records_the_seam(client: EngineClient) -> None:
    (running,) = start_long(client, num_tokens=300)
    client.post("/pause_generation", {"mode": "in_place"})
    client.update("v1", "8", flush_cache=False)
    client.post("/continue_generation")
    meta = running.result()["meta_info"]
    assert [span["version"] for span in meta["weight_versions"]] == ["0", "8"]
    assert meta["completion_tokens"] == meta["weight_versions"][-1]["end"] == 300
    assert meta["weight_version"] == "8"


def test_in_place_update_with_flush_is_refused_while_something_runs(client: EngineClient) -> None:
    (running,) = start_long(client, num_tokens=200)
    client.post("/pause_generation", {"mode": "in_place"})
    refusal = client.update("v1", "9", expect=400)
    assert refusal["success"] is False
    client.post("/continue_generation")
    assert running.result()["meta_info"]["completion_tokens"] == 200


def test_after_an_update_a_cached_prompt_is_scored_by_the_new_weights(contract: Contract) -> None:
    client, prompt = contract.client, prompt_of(50, seed=13)
    for round_index, (name, version) in enumerate(itertools.islice(itertools.cycle((("v1", "1"), ("v0", "2"))), 4)):
        client.generate(prompt, max_new_tokens=1, ignore_eos=True)
        client.update(name, f"{version}{round_index}")
        reply = client.generate(prompt, max_new_tokens=4, ignore_eos=True)
        assert reply["meta_info"]["cached_tokens"] == 0
        assert reply["meta_info"]["weight_version"] == f"{version}{round_index}"
        assert_exact(contract, prompt, reply, version=name)


def test_an_update_without_flush_keeps_the_prefix(client: EngineClient) -> None:
    prompt = prompt_of(50, seed=14)
    client.generate(prompt, max_new_tokens=1, ignore_eos=True)
    client.update("v1", "5", flush_cache=False)
    assert client.generate(prompt, max_new_tokens=1, ignore_eos=True)["meta_info"]["cached_tokens"] == 49


@pytest.mark.parametrize("order", list(itertools.permutations(["pause", "update", "continue"])))
def test_pause_update_and_continue_work_twice_and_in_any_order(client: EngineClient, order: tuple[str, ...]) -> None:
    calls = {
        "pause": lambda: client.post("/pause_generation", {"mode": "retract"}),
        "update": lambda: client.update("v1", "4"),
        "continue": lambda: client.post("/continue_generation"),
    }
    for name in order:
        calls[name]()
        calls[name]()
    client.post("/continue_generation")
    reply = client.generate([5, 6, 7], max_new_tokens=3, ignore_eos=True)
    assert reply["meta_info"]["weight_version"] == "4"


def test_many_updates_while_many_requests_run_lose_no_token(contract: Contract) -> None:
    client = contract.client
    started = start_long(client, 16, num_tokens=120)
    for index in range(12):
        client.post("/pause_generation", {"mode": "retract" if index % 2 else "in_place"})
        client.update(f"v{(index + 1) % 2}", str(100 + index), flush_cache=bool(index % 2))
        client.post("/continue_generation")
    for future in started:
        meta = future.result()["meta_info"]
        spans = meta["weight_versions"]
        assert meta["finish_reason"] == {"type": "length", "length": 120}
        assert meta["output_token_logprobs_length"] == len(meta["output_token_logprobs"]) == 120
        assert [span["start"] for span in spans] == [0, *(span["end"] for span in spans[:-1])]


def test_abort_request_ends_the_id_and_all_that_begin_with_it_and_leaves_others_alone(client: EngineClient) -> None:
    other = client.start(prompt_of(10), rid="other", max_new_tokens=150, ignore_eos=True)
    started = [
        client.start(prompt_of(10, seed=index), rid=rid, max_new_tokens=LONG, ignore_eos=True)
        for index, rid in enumerate(("long", "long-1"))
    ]
    wait_until(lambda: client.num_running() == 3 or other.done())
    client.post("/abort_request", {"rid": "long"})
    assert [future.result()["meta_info"]["finish_reason"]["type"] for future in started] == ["abort", "abort"]
    assert other.result()["meta_info"]["finish_reason"]["type"] == "length"


def test_flush_is_refused_while_requests_run_and_waits_when_asked(client: EngineClient) -> None:
    (running,) = start_long(client, num_tokens=300)
    client.post("/flush_cache", expect=400)
    client.post("/flush_cache?timeout=30")
    assert running.result()["meta_info"]["completion_tokens"] == 300
    prompt = prompt_of(50, seed=15)
    client.generate(prompt, max_new_tokens=1, ignore_eos=True)
    client.post("/flush_cache")
    assert client.generate(prompt, max_new_tokens=1, ignore_eos=True)["meta_info"]["cached_tokens"] == 0


def test_health_and_info_answer(client: EngineClient) -> None:
    client.get("/health")
    client.get("/health_generate")
    client.update("v1", "6")
    assert client.get("/model_info")["weight_version"] == "6"
    assert client.get("/server_info")["version"]


def test_a_client_that_hangs_up_aborts_its_request(client: EngineClient) -> None:
    with client.sent([5, 6], max_new_tokens=LONG, ignore_eos=True):
        wait_until(lambda: client.num_running() == 1)
    wait_until(lambda: client.num_running() == 0)
    assert client.generate([5, 6], max_new_tokens=2, ignore_eos=True)["meta_info"]["completion_tokens"] == 2


def test_a_full_queue_answers_503_and_the_rest_goes_on(client: EngineClient) -> None:
    started = [
        client.start(prompt_of(9, seed=index), max_new_tokens=LONG, ignore_eos=True) for index in range(NUM_RUNNING)
    ]
    wait_until(lambda: client.num_running() == NUM_RUNNING)
    with ExitStack() as stack:
        for _ in range(MAX_QUEUED):
            stack.enter_context(client.sent([5, 6], max_new_tokens=1))
        wait_until(lambda: client.num_unfinished() == NUM_RUNNING + MAX_QUEUED)
        refusal = client.generate([5, 6], expect=503, max_new_tokens=1)
        assert "full" in str(refusal)
    client.post("/abort_request", {"abort_all": True})
    assert {future.result()["meta_info"]["finish_reason"]["type"] for future in started} == {"abort"}


def test_without_the_key_nothing_is_generated(client: EngineClient) -> None:
    for path in ("/generate", "/update_weights_from_disk", "/pause_generation"):
        status, _ = client.call("POST", path, {}, headers={"Authorization": "Bearer wrong"})
        assert status == 401
    assert client.call("GET", "/health", headers={})[0] == 200
