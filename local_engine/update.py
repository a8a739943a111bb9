"""Weight updates: check the request, read the folder beside the running model, then swap between two steps."""

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any  # JSON bodies are free-form

from torch import Tensor

from local_engine.engine import Engine
from local_engine.errors import BadRequestError, StartError, UnsupportedModelError, WeightsError
from local_engine.model import refuse_other_model
from local_engine.request import ABORTED
from local_engine.scheduler import Scheduler
from local_engine.weights import read_weights, resolve_folder
from longturn.metrics import Metrics

logger = logging.getLogger(__name__)

FIELDS = frozenset(
    {
        "model_path",
        "weight_version",
        "flush_cache",
        "keep_pause",
        "abort_all_requests",
        "manifest",
        "load_format",
        # Without meaning here.
        "is_async",
        "token_step",
        "torch_empty_cache",
        "recapture_cuda_graph",
    }
)
LOAD_FORMATS = frozenset({None, "auto", "safetensors"})


class WeightUpdates:
    """Runs one update at a time."""

    def __init__(
        self, engine: Engine, *, weights_root: Path | None, raw_config: dict[str, Any], metrics: Metrics
    ) -> None:
        self._engine = engine
        self._weights_root = weights_root
        self._raw_config = raw_config
        self._metrics = metrics
        self._lock = asyncio.Lock()

    async def update(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """SGLang's answer: success, message, num_paused_requests. A refused update has changed nothing."""
        check_fields(body)
        async with self._lock:
            try:
                return await self._update(body)
            except (WeightsError, StartError, UnsupportedModelError) as error:
                self._metrics.count("engine/update/refused")
                logger.warning("weight update refused", extra={"cause": str(error)})
                return {"success": False, "message": f"{error} (nothing was changed)", "num_paused_requests": 0}

    async def _update(self, body: Mapping[str, Any]) -> dict[str, Any]:
        started_s = time.perf_counter()
        tensors = await asyncio.to_thread(self._read, str(body["model_path"]), body.get("manifest"))
        version = body.get("weight_version")
        flush_cache = body.get("flush_cache") is not False

        def swap(scheduler: Scheduler) -> int:
            if body.get("abort_all_requests"):
                scheduler.abort(lambda _: True, ABORTED)
            num_carried = scheduler.load(tensors, version=version, flush_cache=flush_cache)
            scheduler.is_paused = scheduler.is_paused or bool(body.get("keep_pause"))
            return num_carried

        num_carried = await self._engine.call(swap)
        self._metrics.count("engine/update/applied")
        self._metrics.count("engine/update/busy_s", time.perf_counter() - started_s)
        logger.info("weights updated", extra={"weight_version": version, "num_running": num_carried})
        return {
            "success": True,
            "message": "Succeeded to update model weights.",
            "num_paused_requests": num_carried,
        }

    def _read(self, model_path: str, manifest: Mapping[str, str] | None) -> dict[str, Tensor]:
        folder = resolve_folder(model_path, self._weights_root)
        refuse_other_model(folder, self._raw_config)
        return read_weights(folder, manifest)


def check_fields(body: Mapping[str, Any]) -> None:
    """Raise `BadRequestError` naming the field at fault."""
    for name in body:
        if name not in FIELDS:
            raise BadRequestError(f"field {name} is unknown; allowed: {', '.join(sorted(FIELDS))}")
    if not isinstance(body.get("model_path"), str) or not body["model_path"]:
        raise BadRequestError("model_path must name a folder below engine.weights_root")
    if body.get("load_format") not in LOAD_FORMATS:
        raise BadRequestError(f"load_format {body['load_format']!r} is not loaded here; only safetensors is")
    version = body.get("weight_version")
    if version is not None and not isinstance(version, str):
        raise BadRequestError("weight_version must be a string")
    manifest = body.get("manifest")
    if manifest is not None and not is_manifest(manifest):
        raise BadRequestError("manifest must map file names to SHA-256 digests in hex")


def is_manifest(value: object) -> bool:
    """Whether a value maps strings to strings."""
    return isinstance(value, dict) and all(isinstance(item, str) for pair in value.items() for item in pair)
