"""The learner's publisher on every engine: weights arrive whole, or the engine does not serve."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from learner.broadcast import BroadcastTransport
from learner.config import BroadcastConfig
from learner.engine_client import DiskTransport, EngineClient, Target, Transport, UpdateRules
from learner.engines import EngineRegistry
from tests.engine_contract.contract import Contract
from tests.engine_contract.test_generate import assert_exact, prompt_of

PROMPT = prompt_of(30, seed=80)
LIMIT_S = 60.0
_VOCABULARY_ROUNDED_TO = 64
_MLP_ROUNDED_TO = 32


@contextmanager
def keeping(contract: Contract, transport: Transport | None = None) -> Iterator[tuple[EngineRegistry, EngineClient]]:
    client = EngineClient(contract.client.base_url, contract.client.api_key)
    registry = EngineRegistry(
        [client],
        UpdateRules(pause_mode="retract", flush_cache=True, timeout_s=LIMIT_S, transport=transport or DiskTransport()),
        check_interval_s=60.0,
        on_change=lambda target, rotation: None,
        on_lost=lambda lost: None,
    )
    try:
        yield registry, client
    finally:
        registry.close()


def target(folder: Path, version: int) -> Target:
    return Target(policy_version=version, training_step=version, folder=folder)


def assert_serves(contract: Contract, folder: str, version: int) -> None:
    reply = contract.client.generate(PROMPT, max_new_tokens=6, ignore_eos=True)
    assert reply["meta_info"]["weight_version"] == str(version)
    assert_exact(contract, PROMPT, reply, version=folder)


def until_failed(registry: EngineRegistry, wanted: Target) -> str:
    """What the engine said to weights that it must not take."""
    while not registry.failures:
        assert registry.publish(wanted, timeout_s=1.0) == []
    [failure] = registry.failures.values()
    return failure


def broken_copy(folder: Path, out: Path) -> Path:
    """The same weights, one tensor of another shape."""
    shutil.copytree(folder, out)
    tensors = load_file(out / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"] = torch.zeros(3, 5)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out


def digests_at_engine(folder: Path) -> dict[str, str]:
    """What SGLang should hold of these weights on a CPU: projections fused, rows rounded up with zeros."""
    tensors = load_file(folder / "model.safetensors")
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        tensors[name] = rounded_up(tensors[name], _VOCABULARY_ROUNDED_TO)
    for name in [name for name in tensors if ".down_proj." in name]:
        tensors[name] = rounded_up(tensors[name].T, _MLP_ROUNDED_TO).T
    for name in [name for name in tensors if ".gate_proj." in name or ".up_proj." in name]:
        tensors[name] = rounded_up(tensors[name], _MLP_ROUNDED_TO)
    for fused, parts in (("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("gate_up_proj", ("gate_proj", "up_proj"))):
        for name in [name for name in tensors if f".{parts[0]}." in name]:
            rows = [tensors.pop(name.replace(parts[0], part)) for part in parts]
            tensors[name.replace(parts[0], fused)] = torch.cat(rows)
    return {name: digest(tensor) for name, tensor in tensors.items()}


def rounded_up(rows: Tensor, multiple: int) -> Tensor:
    """With rows of zeros up to a multiple."""
    return torch.cat([rows, rows.new_zeros(-len(rows) % multiple, rows.shape[1])])


def digest(tensor: Tensor) -> str:
    """As SGLang makes it on a CPU."""
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()[:16]


def test_versions_follow_each_other_from_disk(contract: Contract) -> None:
    with keeping(contract) as (registry, client):
        for version in range(1, 9):
            folder = f"v{version % 2}"
            assert registry.publish(target(Path(folder), version), timeout_s=LIMIT_S) == [client]
            assert_serves(contract, folder, version)


def test_weights_that_are_not_there_keep_the_engine_out_until_others_come(contract: Contract) -> None:
    with keeping(contract) as (registry, client):
        until_failed(registry, target(Path("nowhere"), 1))
        assert contract.client.get("/model_info")["weight_version"] == "0"
        assert registry.publish(target(Path("v1"), 2), timeout_s=LIMIT_S) == [client]
        assert_serves(contract, "v1", 2)


def test_fifty_broadcasts_leave_every_tensor_as_the_learner_has_it(
    contract: Contract, weights_root: Path, kind: str
) -> None:
    transport = BroadcastTransport(BroadcastConfig(bucket_bytes=100_000), device="cpu")
    with keeping(contract, transport) as (registry, client):
        if kind != "sglang":
            refusal = until_failed(registry, target(weights_root / "v1", 1))
            assert "learner.publish.transport = disk" in refusal
            assert contract.client.get("/model_info")["weight_version"] == "0"
            return
        for version in range(1, 51):
            folder = f"v{version % 2}"
            assert registry.publish(target(weights_root / folder, version), timeout_s=LIMIT_S) == [client]
            held = client.checksums(timeout_s=LIMIT_S)
            assert held == digests_at_engine(weights_root / folder)
        assert_serves(contract, "v0", 50)


def test_a_broadcast_that_breaks_off_leaves_a_version_that_is_none(
    contract: Contract, weights_root: Path, tmp_path: Path, kind: str
) -> None:
    if kind != "sglang":
        pytest.skip("the embedded engine takes no broadcast")
    transport = BroadcastTransport(BroadcastConfig(bucket_bytes=1), device="cpu")
    with keeping(contract, transport) as (registry, client):
        broken = broken_copy(weights_root / "v1", tmp_path / "broken")
        refusal = until_failed(registry, target(broken, 1))
        assert "update_weights_from_distributed" in refusal
        reply = contract.client.generate(PROMPT, max_new_tokens=6, ignore_eos=True)
        assert reply["meta_info"]["weight_version"] == "loading-1"
        assert registry.publish(target(weights_root / "v1", 2), timeout_s=LIMIT_S) == [client]
        assert_serves(contract, "v1", 2)
        assert client.checksums(timeout_s=LIMIT_S) == digests_at_engine(weights_root / "v1")
