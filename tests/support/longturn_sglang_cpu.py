"""Lets SGLang start on a machine without a GPU. Runs at the start of every interpreter of `make sglang-env`'s folder.

SGLang imports `sgl_kernel` and `torchaudio` at module level; on a CPU without AMX it calls nothing of them, so stubs
are enough: whatever is called all the same raises and says so. `torchvision` from the package index registers its
operators from a CUDA library; without it the two schemas that it looks up at import must be declared beforehand.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_STUBBED = frozenset({"sgl_kernel", "torchaudio"})
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_kept: list[Any] = []  # a torch library unregisters its schemas when it is collected


class _Missing:
    """Stands for any function or class of a stubbed package."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> _Missing:
        return _missing(self._name, name)

    def __call__(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError(f"{self._name} is a stub (longturn_sglang_cpu): there is no CPU build of it")


class _Stub(ModuleType):
    def __getattr__(self, name: str) -> _Missing:
        return _missing(self.__name__, name)


def _missing(owner: str, name: str) -> _Missing:
    if name.startswith("__"):
        raise AttributeError(f"{owner} has no attribute {name}")  # protocols that Python itself asks for
    return _Missing(f"{owner}.{name}")


class _StubLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is in it."""


class _CpuFinder(MetaPathFinder):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] in _STUBBED:
            return ModuleSpec(fullname, _StubLoader(), is_package=True)
        if fullname == "torchvision" and not _kept:
            _declare_schemas()
        return None


def _declare_schemas() -> None:
    import torch.library  # only here: most interpreters of the folder need no torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    _kept.append(library)


sys.meta_path.insert(0, _CpuFinder())
