"""What the server offers, as its workers described it, and how near a wrong name came."""

from __future__ import annotations

import json
from collections.abc import Mapping

from env_server.environment import EnvironmentSpec, KnobError, KnobValue
from env_server.refusals import RefusedError
from env_server.spec_json import spec_from_json
from longturn.nearest import nearest_hint, nearest_name


class Catalog:
    """Specs of the served environments by name."""

    def __init__(self, described: bytes) -> None:
        tree = json.loads(described)
        entries = tree["environments"]
        self.left_out: dict[str, str] = tree["left_out"]
        """Environments that could not be had, each with the reason."""
        self.specs: dict[str, EnvironmentSpec] = {
            entry["spec"]["name"]: spec_from_json(entry["spec"])
            for entry in sorted(entries, key=lambda entry: entry["spec"]["name"])
        }
        self.preparing = frozenset(entry["spec"]["name"] for entry in entries if entry["prepares"])
        """Environments whose tasks have slow work to do before a reset."""

    def spec(self, name: str) -> EnvironmentSpec:
        """One environment; RefusedError(ENVIRONMENT_NOT_FOUND) names the nearest."""
        if name not in self.specs:
            hint = nearest_hint(name, self.specs)
            raise RefusedError(
                "ENVIRONMENT_NOT_FOUND",
                f"no environment {name!r} is served here{hint}; served: {', '.join(self.specs)}",
                nearest=nearest_name(name, self.specs),
            )
        return self.specs[name]

    def check_split(self, spec: EnvironmentSpec, split: str) -> None:
        """RefusedError(SPLIT_NOT_FOUND) unless the environment has this split."""
        if split not in spec.splits:
            hint = nearest_hint(split, spec.splits)
            raise RefusedError(
                "SPLIT_NOT_FOUND",
                f"{spec.name} has no split {split!r}{hint}; it has {', '.join(spec.splits)}",
                nearest=nearest_name(split, spec.splits),
            )


def check_knobs(spec: EnvironmentSpec, knobs: Mapping[str, KnobValue]) -> dict[str, KnobValue]:
    """The knobs, each in its own type; RefusedError(BAD_KNOB) names the range or the nearest name."""
    try:
        resolved = spec.resolve_knobs(knobs)
    except KnobError as error:
        nearest = nearest_name(error.knob, [knob.name for knob in spec.knobs])
        raise RefusedError("BAD_KNOB", str(error), knob=error.knob, nearest=nearest) from error
    return {name: resolved[name] for name in knobs}
