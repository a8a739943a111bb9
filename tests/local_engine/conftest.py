"""The embedded engine, running for the whole session, and what it is checked against."""

import pytest

from tests.engine_contract.contract import Contract, local_engine, models, weights_root
from tests.local_engine.engine_process import EngineClient

__all__ = ["client", "contract", "local_engine", "models", "weights_root"]


@pytest.fixture
def contract(local_engine: Contract) -> Contract:
    """The engine in its first state."""
    local_engine.reset()
    return local_engine


@pytest.fixture
def client(contract: Contract) -> EngineClient:
    """Its client."""
    return contract.client
