"""A part of a task file: some tasks of one kind."""

from __future__ import annotations

from pydantic import Field, ValidationError

from longturn.config import Config
from longturn.errors import ConfigError


class TaskMixConfig(Config):
    """Some tasks of one kind."""

    filters: dict[str, str] = Field(default_factory=dict)
    """Attributes that the tasks must have, such as {family = "coin_collector", level = "116"}."""
    num_tasks: int = Field(ge=1)
    """The first so many of them, in the order of the server."""
    skip: int = Field(default=0, ge=0)
    """Leave out the first so many, so that two sets of one split share no task."""


def mix_from_json(text: str) -> TaskMixConfig:
    """One kind from a JSON object with the fields above; ConfigError names what is wrong."""
    try:
        return TaskMixConfig.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"--mix {text!r}: {place}{': ' if place else ''}{first['msg']}; it is a JSON object such as "
            '{"filters": {"level": "108"}, "num_tasks": 24}'
        ) from error
