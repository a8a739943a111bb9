"""The parts of an installation that may be absent: what each extra brings, and how a missing one is installed."""

from __future__ import annotations

import traceback
from collections.abc import Mapping

MODULES_BY_EXTRA: Mapping[str, tuple[str, ...]] = {
    "server-textworld": ("textworld", "jericho"),
    "server-alfworld": ("textworld", "alfworld", "fast_downward"),
    "server-scienceworld": ("scienceworld", "py4j"),
    "server-textworld-express": ("textworld_express", "py4j"),
    "server-reasoning-gym": ("reasoning_gym",),
    "clients": ("aiohttp", "tokenizers"),
    "engine": ("aiohttp", "torch", "transformers", "safetensors", "tokenizers", "numpy"),
    "learner": ("torch", "transformers", "safetensors", "tokenizers", "numpy", "tensorboard"),
    "lora": ("peft",),
    "report": ("matplotlib",),
    "gymnasium": ("gymnasium",),
    "mcp": ("mcp",),
    "channelz": ("grpc_channelz",),
    "traces": ("opentelemetry",),
}
"""Extras of pyproject.toml, with the modules that each brings."""

OPTIONAL_EXTRAS: Mapping[str, str] = {
    "server-alfworld": "make alfworld",
    "server-scienceworld": "make java",
    "server-textworld-express": "make java",
    "server-reasoning-gym": "make reasoning-gym",
    "lora": "make lora",
}
"""Extras that `all` leaves out because only some runs need them: the command that installs each in a checkout."""

_EXTRA_BY_PACKAGE = {"clients": "clients", "local_engine": "engine", "learner": "learner"}


def extra_for(error: ModuleNotFoundError) -> str | None:
    """The extra that brings the missing module, preferring that of the plane which asked for it; None if none does."""
    module = (error.name or "").partition(".")[0]
    extras = [extra for extra, modules in MODULES_BY_EXTRA.items() if module in modules]
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    packages = {str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames}
    own = {_EXTRA_BY_PACKAGE.get(package) for package in packages}
    return next((extra for extra in extras if extra in own), extras[0] if extras else None)


def how_to_install(extra: str) -> str:
    """The command that installs an extra. The package is not released yet, so every installation has a checkout."""
    target = OPTIONAL_EXTRAS.get(extra, "make install")
    return f"in the checkout run: {target}, or pip install --constraint constraints/tested.txt '.[{extra}]'"
