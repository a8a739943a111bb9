"""Engines that the contract is asked of: the embedded one, and a real SGLang where the marker `sglang` is chosen."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine_contract.contract import MAX_QUEUED, NUM_RUNNING, Contract, local_engine, models, weights_root
from tests.local_engine.engine_process import EngineClient
from tests.support.sglang_server import sglang_server

__all__ = ["client", "contract", "local_engine", "models", "sglang_engine", "weights_root"]

KEY = "secret"
IDENTITY = ("sglang", "0.5.23")


@pytest.fixture(scope="session")
def sglang_engine(
    weights_root: Path, models: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Contract]:
    """One real SGLang for the whole session, computing in float32.

    LONGTURN_CONTRACT_URL names a server that already runs (key `secret`, same models as v0 and v1 in its folder).
    """
    url = os.environ.get("LONGTURN_CONTRACT_URL")
    if url:
        client = EngineClient(base_url=url, api_key=KEY)
        yield Contract(client=client, models=models, tolerance=1e-4, identity=IDENTITY)
        return
    log = tmp_path_factory.mktemp("sglang") / "server.log"
    options = ["--api-key", KEY, "--max-queued-requests", str(MAX_QUEUED)]
    with sglang_server(
        weights_root / "v0",
        log,
        cwd=weights_root,
        dtype="float32",
        max_running_requests=NUM_RUNNING,
        options=options,
    ) as server:
        client = EngineClient(base_url=server.url, api_key=KEY)
        yield Contract(client=client, models=models, tolerance=1e-4, identity=IDENTITY)
        client.pool.shutdown(wait=False)


@pytest.fixture(
    scope="session",
    params=["local_engine", pytest.param("sglang_engine", marks=[pytest.mark.sglang, pytest.mark.timeout(600)])],
)
def session_engine(request: pytest.FixtureRequest) -> Contract:
    """The engine under test."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def kind(session_engine: Contract) -> str:
    """What the engine under test calls itself."""
    return session_engine.identity[0]


@pytest.fixture
def contract(session_engine: Contract) -> Contract:
    """It, in its first state."""
    session_engine.reset()
    return session_engine


@pytest.fixture
def client(contract: Contract) -> EngineClient:
    """Its client."""
    return contract.client
