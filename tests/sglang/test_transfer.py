"""kill -9 of SGLang while weights are on their way to it."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from learner.broadcast import BroadcastTransport
from learner.config import BroadcastConfig
from learner.engine_client import EngineClient, EngineError, EngineLostError, Target, UpdateRules
from tests.engine_contract.contract import models, weights_root
from tests.support.sglang_server import SglangServer
from tests.support.waiting import wait_until

__all__ = ["models", "weights_root"]

LIMIT_S = 60.0


@pytest.mark.sglang
@pytest.mark.timeout(1800)
def test_an_engine_killed_in_mid_broadcast_is_an_error_with_its_address_and_comes_back_by_a_whole_load(
    weights_root: Path, tmp_path: Path
) -> None:
    server = SglangServer(weights_root / "v0", tmp_path / "sglang.log", dtype="float32")
    client = EngineClient(server.url)
    rules = UpdateRules(
        pause_mode="retract",
        flush_cache=True,
        timeout_s=LIMIT_S,
        transport=BroadcastTransport(BroadcastConfig(bucket_bytes=1), device="cpu"),
    )
    try:
        with ThreadPoolExecutor(max_workers=1) as threads:
            loading = killed_in_mid_load(server, client, rules, weights_root / "v1", threads)
            with pytest.raises(EngineLostError, match=server.url):
                loading.result()
        server = SglangServer(weights_root / "v0", tmp_path / "sglang.log", port=server.port, dtype="float32")
        client.load(target(weights_root / "v1", 1000), rules)
        assert client.weight_version(timeout_s=LIMIT_S) == "1000"
    finally:
        server.kill()


def killed_in_mid_load(
    server: SglangServer, client: EngineClient, rules: UpdateRules, folder: Path, threads: ThreadPoolExecutor
) -> Future[None]:
    """Load version after version until one is caught under way; the engine is then dead."""
    for version in range(1, 100):
        loading = threads.submit(client.load, target(folder, version), rules)
        wait_until(lambda: loading.done() or is_under_way(client))  # noqa: B023  # evaluated before the next round
        if not loading.done():
            server.kill()
            return loading
        loading.result()
    raise AssertionError("not one of 99 loads was caught under way")


def is_under_way(client: EngineClient) -> bool:
    try:
        return client.weight_version(timeout_s=LIMIT_S).startswith("loading-")
    except EngineError:
        return False


def target(folder: Path, version: int) -> Target:
    return Target(policy_version=version, training_step=version, folder=folder)
