"""What the embedded engine promises beyond the common contract."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.engine_contract.contract import MAX_QUEUED, NUM_RUNNING, Contract
from tests.engine_contract.test_generate import assert_exact, output_logprobs, prompt_of
from tests.local_engine.engine_process import EngineClient, serving_here
from tests.local_engine.tiny_models import save_model, tiny_model
from tests.support.waiting import wait_until


@pytest.fixture(scope="session")
def broken_weights(weights_root: Path) -> Path:
    """Weight folders with one fault each, below the weights root."""
    good = load_file(weights_root / "v1" / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    faults = {
        "missing": {key: tensor for key, tensor in good.items() if key != name},
        "misshapen": good | {name: good[name][:-1].contiguous()},
        "surplus": good | {"model.layers.9.mlp.down_proj.weight": good[name].clone()},
        "not-finite": good | {name: good[name] * float("nan")},
    }
    for fault, tensors in faults.items():
        folder = shutil.copytree(weights_root / "v1", weights_root / fault)
        save_file(tensors, folder / "model.safetensors")
    truncated = shutil.copytree(weights_root / "v1", weights_root / "truncated") / "model.safetensors"
    truncated.write_bytes(truncated.read_bytes()[:-100])
    marked = shutil.copytree(weights_root / "v1", weights_root / "wrong-checksum")
    (marked / "COMPLETE").write_text(json.dumps({"sha256": {"model.safetensors": "0" * 64}}))
    other = shutil.copytree(weights_root / "v1", weights_root / "other-rope")
    config = json.loads((other / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 500.0
    (other / "config.json").write_text(json.dumps(config))
    (weights_root / "empty").mkdir()
    (weights_root / "escape").symlink_to(weights_root.parent)
    return weights_root


@pytest.mark.parametrize(
    "fault",
    [
        "missing",
        "misshapen",
        "surplus",
        "not-finite",
        "truncated",
        "wrong-checksum",
        "other-rope",
        "empty",
        "absent",
        "../",
        "escape",
        "/etc",
    ],
)
def test_a_faulty_weight_folder_is_refused_and_the_old_weights_stay(
    contract: Contract, broken_weights: Path, fault: str
) -> None:
    client, prompt = contract.client, prompt_of(20)
    refusal = client.update(fault, "9", expect=400)
    assert refusal["success"] is False
    assert "nothing was changed" in refusal["message"]
    reply = client.generate(prompt, max_new_tokens=4, ignore_eos=True)
    assert reply["meta_info"]["weight_version"] == "0"
    assert_exact(contract, prompt, reply)


def test_a_right_checksum_is_accepted_from_marker_and_from_the_request(
    client: EngineClient, weights_root: Path
) -> None:
    folder = shutil.copytree(weights_root / "v1", weights_root / "marked", dirs_exist_ok=True)
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    client.update("marked", "1", manifest={"model.safetensors": digest})
    (folder / "COMPLETE").write_text(json.dumps({"sha256": {"model.safetensors": digest}}))
    client.update("marked", "2")
    client.update("v1", "3", expect=400, manifest={"model.safetensors": "0" * 64})


def test_an_update_of_an_engine_that_is_not_paused_applies_to_all_running_requests_at_once(
    client: EngineClient,
) -> None:
    started = [client.start(prompt_of(10, seed=index), max_new_tokens=300, ignore_eos=True) for index in range(8)]
    wait_until(lambda: client.num_running() == 8)
    outcome = client.update("v1", "1", flush_cache=False)
    assert outcome["num_paused_requests"] == 8
    for future in started:
        assert [span["version"] for span in future.result()["meta_info"]["weight_versions"]] == ["0", "1"]


def test_keep_pause_leaves_the_engine_paused(client: EngineClient) -> None:
    client.update("v1", "1", keep_pause=True)
    assert client.get("/server_info")["is_paused"] is True
    client.post("/continue_generation")
    assert client.get("/server_info")["is_paused"] is False


def test_a_seed_gives_the_same_sample_alone_in_a_crowd_and_after_an_abort(client: EngineClient) -> None:
    prompt = prompt_of(30, seed=20)
    alone = client.generate(prompt, max_new_tokens=24, ignore_eos=True, sampling_seed=42)
    crowd = [client.start(prompt_of(5 + index, seed=index), max_new_tokens=40, ignore_eos=True) for index in range(24)]
    among = client.generate(prompt, max_new_tokens=24, ignore_eos=True, sampling_seed=42)
    assert among["output_ids"] == alone["output_ids"]
    assert output_logprobs(among) == pytest.approx(output_logprobs(alone), abs=1e-4)
    for future in crowd:
        future.result()
    head = alone["output_ids"][:10]
    rest = client.generate(prompt + head, max_new_tokens=14, ignore_eos=True, sampling_seed=42)
    assert head + rest["output_ids"] == alone["output_ids"]
    other = client.generate(prompt, max_new_tokens=24, ignore_eos=True, sampling_seed=43)
    assert other["output_ids"] != alone["output_ids"]


def test_end_of_text_ends_a_completion_unless_ignored(client: EngineClient) -> None:
    prompt = prompt_of(5, seed=21)
    seeds = range(60)  # fewer than the engine's queue holds
    replies = [client.start(prompt, max_new_tokens=40, sampling_seed=seed) for seed in seeds]
    stopped = [reply.result() for reply in replies if reply.result()["meta_info"]["finish_reason"]["type"] == "stop"]
    assert stopped
    assert all(reply["output_ids"][-1] == 1 and 1 not in reply["output_ids"][:-1] for reply in stopped)


def test_stop_strings_and_text_follow_the_tokenizer(client: EngineClient) -> None:
    fields = {"max_new_tokens": 12, "ignore_eos": True, "temperature": 0}
    body = {"text": "w5 w6 w7"}
    free = client.post("/generate", body | {"sampling_params": fields})
    words = free["text"].split()
    assert [f"w{token_id}" for token_id in free["output_ids"]] == words
    stop = words[3]
    cut = client.post("/generate", body | {"sampling_params": fields | {"stop": [stop]}})
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert cut["text"].split() == words[: words.index(stop)]
    whole = client.post("/generate", body | {"sampling_params": fields | {"stop": stop, "no_stop_trim": True}})
    assert whole["text"].split() == words[: words.index(stop) + 1]


@pytest.mark.parametrize(
    ("field", "value"), [("top_p", 0.9), ("top_k", 40), ("min_p", 0.1), ("repetition_penalty", 1.1), ("regex", "a")]
)
def test_what_would_change_the_distribution_is_refused(client: EngineClient, field: str, value: Any) -> None:
    assert field in client.generate([5, 6], expect=400, **{field: value})["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input_ids": []},
        {"input_ids": [5, "x"]},
        {"input_ids": [5.5]},
        {"input_ids": [300]},
        {"input_ids": [-1]},
        {"input_ids": [5], "text": "w5"},
        {"input_ids": [5], "stream": True},
        {"input_ids": [5], "lora_path": "x"},
        {"input_ids": [5], "sampling_params": {"max_new_tokens": -1}},
        {"input_ids": [5], "sampling_params": {"temperature": -0.5}},
        {"input_ids": [5], "sampling_params": {"temperature": "hot"}},
        {"input_ids": [5], "sampling_params": {"max_new_tokens": 5000}},
        {"input_ids": [5], "sampling_params": [{}, {}]},
        {"input_ids": [5], "return_logprob": True, "logprob_start_len": 7},
        {"input_ids": [[5], [6]], "rid": ["one"]},
        [],
    ],
)
def test_malformed_bodies_are_refused_with_one_message(client: EngineClient, body: object) -> None:
    assert client.post("/generate", body, expect=400)["error"]["message"]


@pytest.mark.parametrize("path", ["/generate", "/pause_generation", "/update_weights_from_disk", "/abort_request"])
@pytest.mark.parametrize(
    ("body", "why"), [(b"[" * 100_000, "nested too deep"), (b"{", "double quotes"), (b"\xff", "decode")]
)
def test_a_body_that_is_no_json_is_refused_with_its_reason(
    client: EngineClient, path: str, body: bytes, why: str
) -> None:
    assert why in client.post(path, body, expect=400)["error"]["message"]


def test_neutral_values_are_accepted(client: EngineClient) -> None:
    client.generate(
        [5, 6],
        max_new_tokens=1,
        top_p=1.0,
        top_k=-1,
        min_p=0,
        repetition_penalty=1.0,
        regex=None,
        spaces_between_special_tokens=False,
    )


def test_scoring_alone_samples_nothing(contract: Contract) -> None:
    prompt = prompt_of(30, seed=22)
    reply = contract.client.generate(prompt, max_new_tokens=0, body={"logprob_start_len": 0})
    assert reply["output_ids"] == []
    assert len(reply["meta_info"]["input_token_logprobs"]) == 30
    assert reply["meta_info"]["weight_version"] == "0"


def test_a_full_queue_takes_a_batch_as_a_whole_or_not_at_all(client: EngineClient) -> None:
    client.post("/pause_generation")
    num_held = NUM_RUNNING + MAX_QUEUED - 4
    waiting = client.start([[5, 6]] * num_held, max_new_tokens=1, ignore_eos=True)
    wait_until(lambda: client.num_unfinished() == num_held)
    refusal = client.generate([[5, 6]] * 10, expect=503, max_new_tokens=1)
    assert "full" in refusal["error"]["message"]
    assert client.num_unfinished() == num_held
    client.post("/continue_generation")
    assert len(waiting.result()) == num_held


def test_without_the_key_only_health_answers(client: EngineClient) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": client.api_key}):
        for method, path in (("POST", "/generate"), ("POST", "/update_weights_from_disk"), ("GET", "/metrics")):
            status, content = client.call(method, path, {}, headers=headers)
            assert status == 401
            assert "Bearer" in content["error"]["message"]
        assert client.call("GET", "/health", headers=headers)[0] == 200


def test_metrics_count_tokens_and_time(client: EngineClient) -> None:
    client.generate(prompt_of(20), max_new_tokens=3, ignore_eos=True)
    text = client.get("/metrics")
    for name in ("request_finished", "prompt_tokens", "prompt_cached_tokens", "output_tokens", "decode_busy_s"):
        assert f"longturn_engine_{name}_total" in text


def test_a_long_prompt_does_not_stop_running_requests(weights_root: Path) -> None:
    with serving_here(weights_root / "v0", prefill_tokens_per_step=16, max_running_requests=4) as client:
        running = client.start([5, 6], max_new_tokens=100, ignore_eos=True)
        wait_until(lambda: client.num_running() == 1)
        long = client.start(prompt_of(3000, seed=23), max_new_tokens=1, ignore_eos=True)
        running.result()
        assert not long.done()
        long.result()


def test_slots_are_evicted_when_there_are_more_episodes_than_slots(weights_root: Path, contract: Contract) -> None:
    with serving_here(weights_root / "v0", context_tokens=128, max_total_tokens=512, max_running_requests=4) as client:
        prompts = [prompt_of(40, seed=index) for index in range(12)]
        for _ in range(2):
            for prompt, future in [
                (prompt, client.start(prompt, max_new_tokens=8, ignore_eos=True)) for prompt in prompts
            ]:
                assert_exact(contract, prompt, future.result())


@pytest.mark.parametrize(
    ("family", "fields", "branch_cached"),
    [
        ("qwen3", {}, 60),
        # Its window forgets old positions, so a slot can only be continued, never branched.
        ("gemma3", {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}, 0),
    ],
)
def test_other_architectures_run_on_transformers_own_forward(
    tmp_path: Path, family: str, fields: dict[str, Any], branch_cached: int
) -> None:
    model = tiny_model(family, **fields)
    folder = save_model(model, tmp_path / "model")
    with serving_here(folder, backend="transformers", context_tokens=256, max_running_requests=4) as client:
        contract = Contract(client=client, models={"v0": model}, tolerance=1e-4)
        context = prompt_of(40, seed=50)
        for turn in range(3):
            reply = client.generate(context, max_new_tokens=8, ignore_eos=True)
            assert_exact(contract, context, reply)
            assert reply["meta_info"]["cached_tokens"] == (len(context) - 10 if turn else 0)
            context = context + reply["output_ids"] + prompt_of(9, seed=turn)
        branch = [*context[:60], 7]
        reply = client.generate(branch, max_new_tokens=4, ignore_eos=True)
        assert_exact(contract, branch, reply)
        assert reply["meta_info"]["cached_tokens"] == branch_cached


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_bfloat16_stays_near_float32(tmp_path: Path, family: str) -> None:
    model = tiny_model(family)
    folder = save_model(model, tmp_path / "model")
    contract_models = {"v0": model}
    with serving_here(folder, dtype="bfloat16", context_tokens=256) as client:
        contract = Contract(client=client, models=contract_models, tolerance=0.25)
        prompt = prompt_of(20)
        assert_exact(contract, prompt, client.generate(prompt, max_new_tokens=10, ignore_eos=True))
