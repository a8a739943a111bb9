"""Policies by the names that commands take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path

from clients.policies.base import TextPolicy
from clients.policies.text import OraclePolicy, RandomPolicy, ScriptedTextPolicy
from longturn.errors import ConfigError
from longturn.nearest import nearest_name
from longturn.records import KnobValue

_SCRIPT_PREFIX = "scripted:"


def make_text_policy(name: str, settings: Mapping[str, KnobValue]) -> TextPolicy:
    """The policy `random`, `oracle`, `scripted:FILE` (an action per line), or a demonstrator with its settings.

    Raises ConfigError naming the nearest known name, or the settings that the policy takes.
    """
    if name.startswith(_SCRIPT_PREFIX):
        if settings:
            raise ConfigError(f"policy {name}: it takes no settings, not {', '.join(settings)}")
        return _scripted(Path(name.removeprefix(_SCRIPT_PREFIX)))
    makers: dict[str, Callable[..., TextPolicy]] = {"random": RandomPolicy, "oracle": OraclePolicy}
    if name not in makers:
        from clients.demonstrators import DEMONSTRATORS  # their own modules; the plain policies need none

        makers.update(DEMONSTRATORS)
    if name not in makers:
        nearest = nearest_name(name, makers)
        hint = f", did you mean {nearest}?" if nearest else ""
        known = ", ".join(sorted(makers))
        raise ConfigError(
            f"unknown policy {name!r}{hint} Known: {known}, scripted:FILE, or an engine's http:// address"
        )
    try:
        return makers[name](**settings)
    except (TypeError, ValueError) as error:
        takes = ", ".join(inspect.signature(makers[name]).parameters) or "none"
        raise ConfigError(f"policy {name}: {error}; it takes the settings: {takes}") from error


def _scripted(path: Path) -> ScriptedTextPolicy:
    try:
        actions = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"script {path} cannot be read: {error}; it needs an action per line") from error
    if not actions:
        raise ConfigError(f"script {path} holds no action")
    return ScriptedTextPolicy(actions)
