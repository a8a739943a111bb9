"""Sends weights to an engine over a process group: for engines that do not see the learner's disk.

Invariant: an engine whose update broke off half way reports a version that is no number, so no pool takes its tokens
for those of any weights. Each load makes a group of its own between the learner (rank 0) and one engine (the other
ranks): an engine that dies breaks nobody else's load, and none waits for another.
"""

# Torch exports and annotates its stores and process groups only in part.
# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore

from learner.config import BroadcastConfig
from learner.engine_client import EngineClient, EngineError, EngineLostError, Target
from longturn.engine_facts import EngineFacts
from longturn.errors import ConfigError

_POLL_S = 0.001
_DEVICE_OF_BACKEND = {"gloo": "cpu", "nccl": "cuda"}

NamedTensors = list[tuple[str, Tensor]]


class BroadcastTransport:
    """Broadcasts the tensors of a folder, bucket by bucket."""

    def __init__(self, config: BroadcastConfig, *, device: str) -> None:
        """`device` is where the learner computes; nccl sends from there, gloo from memory. ConfigError without nccl."""
        if config.backend == "nccl" and not dist.is_nccl_available():
            raise ConfigError(
                "learner.publish.broadcast.backend is nccl, which this build of torch lacks; install one for CUDA, or"
                " set learner.publish.broadcast.backend = gloo"
            )
        self._config = config
        self._device = torch.device(device if config.backend == "nccl" else "cpu")

    def check(self, engine: EngineClient, facts: EngineFacts) -> None:
        """Only SGLang takes part in a group."""
        if facts.name != "sglang":
            raise EngineError(
                f"{engine.url} ({facts.name}) takes weights from a disk only; set learner.publish.transport = disk"
            )

    def send(
        self, engine: EngineClient, facts: EngineFacts, target: Target, *, flush_cache: bool, timeout_s: float
    ) -> None:
        """Group, begin, buckets, end."""
        version = str(target.policy_version)
        with _joined(engine, facts, self._config, timeout_s) as group:
            # What the engine samples should the load break off must not pass for the old weights or the new ones.
            marking = {"new_version": f"loading-{version}", "abort_all_requests": False}
            engine.demand("/update_weight_version", marking, timeout_s=timeout_s)
            with _bracket(engine, facts, timeout_s):
                buckets = list(_buckets(target.folder, self._config.bucket_bytes))
                for index, names in enumerate(buckets):
                    is_last = index == len(buckets) - 1
                    news: dict[str, object] = {"flush_cache": flush_cache and is_last}
                    if is_last:
                        news["weight_version"] = version
                    group.send(_read(names, self._device), news)


class _Group:
    """One engine and the learner, joined."""

    def __init__(self, engine: EngineClient, name: str, backend: Any, timeout_s: float) -> None:
        """`backend` is torch's, which has no type there."""
        self._engine = engine
        self._name = name
        self._backend = backend
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="broadcast")

    def send(self, tensors: NamedTensors, news: dict[str, object]) -> None:
        """Broadcast while the engine receives; the engine's own error goes before that of the connection."""
        body = news | {
            "names": [name for name, _ in tensors],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in tensors],
            "shapes": [list(tensor.shape) for _, tensor in tensors],
            "group_name": self._name,
        }
        asked = self._threads.submit(
            self._engine.demand, "/update_weights_from_distributed", body, timeout_s=self._timeout_s
        )
        try:
            works = [self._backend.broadcast([tensor], _from_rank_0()) for _, tensor in tensors]
            for work in works:
                _wait(work, asked)
        except RuntimeError as error:
            asked.result()
            raise EngineLostError(f"{self._engine.url}: the broadcast broke off: {error}") from error
        asked.result()

    def leave(self) -> None:
        """Free both ends; an engine that is gone has nothing to free."""
        self._threads.shutdown(wait=False)
        with suppress(EngineError):
            body = {"group_name": self._name}
            self._engine.demand("/destroy_weights_update_group", body, timeout_s=self._timeout_s)


@contextmanager
def _joined(engine: EngineClient, facts: EngineFacts, config: BroadcastConfig, timeout_s: float) -> Iterator[_Group]:
    """Meet the engine at a port of this machine, for the time of the block."""
    name = f"longturn-{secrets.token_hex(6)}"
    world_size = 1 + facts.num_ranks
    listener = _listener(config.address)
    port = listener.getsockname()[1]
    body = {
        "master_address": config.address,
        "master_port": port,
        "rank_offset": 1,
        "world_size": world_size,
        "group_name": name,
        "backend": config.backend,
    }
    limit = timedelta(seconds=timeout_s)
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="join") as threads:
        # The store owns the listening socket from here on.
        store = TCPStore(
            config.address, port, world_size, True, limit, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        asked = threads.submit(engine.demand, "/init_weights_update_group", body, timeout_s=timeout_s)
        try:
            backend = _make_backend(config, name, store, world_size, limit)
        except RuntimeError as error:
            asked.result()
            raise EngineLostError(f"{engine.url} did not join the broadcast: {error}") from error
        asked.result()
    group = _Group(engine, name, backend, timeout_s)
    try:
        yield group
    finally:
        group.leave()


def _listener(address: str) -> socket.socket:
    """A socket at this address alone: by itself a store listens on all of them."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((address, 0))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"learner.publish.broadcast.address: {address} is no address of this machine: {error.strerror}"
        ) from error
    listener.listen()
    return listener


def _make_backend(
    config: BroadcastConfig, name: str, store: TCPStore, world_size: int, limit: timedelta
) -> Any:  # Any: untyped in torch
    """Rank 0 of a group as torch's own helper would make it, but without its global registry.

    The prefixes are those of `init_process_group` and of SGLang's group of that name.
    """
    named = PrefixStore(f"{name}/", PrefixStore(name, store))
    prefixed = PrefixStore(f"{_DEVICE_OF_BACKEND[config.backend]}/", named)
    if config.backend == "nccl":
        return dist.ProcessGroupNCCL(prefixed, 0, world_size, limit)
    options = dist.ProcessGroupGloo._Options()  # pyright: ignore[reportPrivateUsage]  # the only way to name an interface
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=config.address)]  # pyright: ignore[reportPrivateUsage]
    options._timeout = limit  # pyright: ignore[reportPrivateUsage]
    return dist.ProcessGroupGloo(prefixed, 0, world_size, options)


def _from_rank_0() -> Any:  # Any: untyped in torch
    options = dist.BroadcastOptions()
    options.rootRank = 0
    options.rootTensor = 0
    return options


@contextmanager
def _bracket(engine: EngineClient, facts: EngineFacts, timeout_s: float) -> Iterator[None]:
    """Begin and end an update where the engine's release has them; the end comes whatever happened."""
    if not facts.brackets_updates:
        yield
        return
    engine.demand("/begin_weight_update", {}, timeout_s=timeout_s)
    try:
        yield
    except EngineError:
        with suppress(EngineError):  # the first error says more
            engine.demand("/end_weight_update", {}, timeout_s=timeout_s)
        raise
    engine.demand("/end_weight_update", {}, timeout_s=timeout_s)


def _wait(work: Any, asked: Future[dict[str, Any]]) -> None:  # Any: untyped in torch
    """Wait until a tensor is sent; raise at once what the engine answers meanwhile, if it is an error."""
    while not work.is_completed():
        if asked.done():
            asked.result()
        time.sleep(_POLL_S)
    work.wait()


def _buckets(folder: Path, most_bytes: int) -> Iterator[list[tuple[Path, str]]]:
    """Names of tensors, file by file, in groups of at most so many bytes, or one tensor."""
    bucket: list[tuple[Path, str]] = []
    size = 0
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  # it is no dict
                num_bytes = _num_bytes(tensors.get_slice(name))
                if bucket and size + num_bytes > most_bytes:
                    yield bucket
                    bucket, size = [], 0
                bucket.append((file, name))
                size += num_bytes
    if bucket:
        yield bucket


_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}


def _num_bytes(part: Any) -> int:  # Any: untyped in safetensors
    num = _BYTES.get(part.get_dtype(), 8)
    for length in part.get_shape():
        num *= length
    return num


def _read(names: Sequence[tuple[Path, str]], device: torch.device) -> NamedTensors:
    """Tensors of a bucket, on the device that sends."""
    found: NamedTensors = []
    for file in sorted({file for file, _ in names}):
        with safe_open(file, framework="pt") as tensors:
            found += [(name, tensors.get_tensor(name).to(device).contiguous()) for of, name in names if of == file]
    return found
