"""Environment specs as they cross the hop from a worker to the server, which imports no environment."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from env_server.environment import Determinism, EnvironmentSpec, KnobSpec


def spec_to_json(spec: EnvironmentSpec) -> dict[str, Any]:
    """A spec as JSON values."""
    return asdict(spec) | {"determinism": spec.determinism.value}


def spec_from_json(tree: dict[str, Any]) -> EnvironmentSpec:
    """Build what `spec_to_json` took apart."""
    values = dict(tree)
    values["knobs"] = tuple(_knob_from_json(knob) for knob in tree["knobs"])
    values["splits"] = tuple(tree["splits"])
    values["determinism"] = Determinism(tree["determinism"])
    return EnvironmentSpec(**values)


def _knob_from_json(tree: dict[str, Any]) -> KnobSpec:
    values = dict(tree)
    values["choices"] = tuple(tree["choices"])
    return KnobSpec(**values)
