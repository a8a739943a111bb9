"""An engine under test, and the fixtures that every user of one shares."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.local_engine.engine_process import EngineClient, serving
from tests.local_engine.tiny_models import EOS_ID, VOCAB_SIZE, save_model, tiny_model

torch.set_num_threads(1)
transformers.logging.disable_progress_bar()

NUM_RUNNING = 16
MAX_QUEUED = 60
RARE_ID = VOCAB_SIZE - 1


def contract_model(seed: int) -> Any:
    """A random model that seldom samples the end of text or the vocabulary's last id, and never greedily."""
    model = tiny_model("qwen2", seed=seed)
    with torch.no_grad():
        model.lm_head.weight[[EOS_ID, RARE_ID]] = 0.0
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """An engine under test, the reference models, and how exactly it must agree with them."""

    client: EngineClient
    models: dict[str, Any]
    """Reference model by the weight path that loads it."""
    tolerance: float
    """Largest difference of a logprob."""
    identity: tuple[str, str] = ("", "")
    """Name and version that the engine is known by."""

    def reset(self) -> None:
        """Bring the engine back: nothing in flight, running, first weights, cold cache."""
        self.client.post("/abort_request", {"abort_all": True})
        self.client.post("/continue_generation")
        self.client.post("/flush_cache?timeout=30")
        self.client.update("v0", "0")


@pytest.fixture(scope="session")
def weights_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two versions of one tiny model."""
    root = tmp_path_factory.mktemp("weights")
    for seed in (0, 1):
        save_model(contract_model(seed), root / f"v{seed}")
    return root


@pytest.fixture(scope="session")
def models() -> dict[str, Any]:
    """The same two versions in memory."""
    return {f"v{seed}": contract_model(seed) for seed in (0, 1)}


@pytest.fixture(scope="session")
def local_engine(
    weights_root: Path, models: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Contract]:
    """The embedded engine."""
    scratch = tmp_path_factory.mktemp("engine")
    settings = {
        "weights_root": weights_root,
        "max_running_requests": NUM_RUNNING,
        "max_queued_requests": MAX_QUEUED,
    }
    with serving(weights_root / "v0", scratch, **settings) as client:
        yield Contract(
            client=client,
            models=models,
            tolerance=1e-4,
            identity=("longturn-local", version("longturn")),
        )
