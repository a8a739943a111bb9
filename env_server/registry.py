"""Which environments exist, and their classes. Names are read anywhere; classes are loaded in worker processes only."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

from env_server.environment import Environment, EnvironmentBrokenError
from longturn.errors import ConfigError
from longturn.extras import extra_for, how_to_install
from longturn.nearest import nearest_hint

GROUP = "longturn.environments"
ADAPTER_GROUP = "longturn.environment_adapters"
"""Functions that make the class of `ADAPTER:NAME`, such as `gymnasium:Taxi-v4`, from the name."""
OWN_PACKAGE = "env_server."
FOR_TESTS = frozenset({"faulty"})
"""Installed, yet served only where they are named."""


def registered() -> dict[str, EntryPoint]:
    """Installed environments by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def adapters() -> dict[str, EntryPoint]:
    """Installed adapters by name."""
    return {point.name: point for point in entry_points(group=ADAPTER_GROUP)}


def served_by_default() -> tuple[str, ...]:
    """Names of the environments of a server that was told none, in order."""
    return tuple(sorted(registered().keys() - FOR_TESTS))


def find(name: str) -> EntryPoint:
    """The entry point of an installed name, of an adapter in `ADAPTER:NAME`, or of `package.module:Class`.

    Raises ConfigError.
    """
    known = registered()
    if name in known:
        return known[name]
    adapter = adapters().get(name.partition(":")[0])
    if adapter is not None and ":" in name:
        return adapter
    if ":" in name:
        return EntryPoint(name=name, value=name, group=GROUP)
    raise ConfigError(
        f"no environment {name!r} is installed{nearest_hint(name, known)}; installed: {', '.join(served_by_default())}"
        f" (package.module:Class, and {':NAME, '.join(adapters())}:NAME, work too); change env_server.environments"
    )


def load(name: str) -> type[Environment]:
    """Import an environment's class; ConfigError names the extra to install or what the import path lacks."""
    point = find(name)
    try:
        loaded = getattr(importlib.import_module(point.module), point.attr, None)
    except ModuleNotFoundError as error:
        raise ConfigError(_missing(name, point, error)) from error
    if point.group == ADAPTER_GROUP and callable(loaded):
        loaded = _adapted(name, loaded)
    if not (isinstance(loaded, type) and issubclass(loaded, Environment)):
        raise ConfigError(f"environment {name}: {point.value} is no subclass of env_server.environment.Environment")
    return loaded


def _adapted(name: str, adapter: Callable[[str], object]) -> object:
    try:
        return adapter(name.partition(":")[2])
    except EnvironmentBrokenError as error:
        raise ConfigError(f"environment {name}: {error}") from error


def _missing(name: str, point: EntryPoint, error: ModuleNotFoundError) -> str:
    extra = extra_for(error) if point.module.startswith(OWN_PACKAGE) else None
    if extra is not None:
        return f"environment {name} needs {error.name}; {how_to_install(extra)}"
    return f"environment {name}: no module named {error.name!r} (from {point.value})"
