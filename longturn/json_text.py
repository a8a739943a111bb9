"""JSON from outside this process: one kind of error, whatever is wrong with it."""

from __future__ import annotations

import json
from typing import Any  # JSON is free-form, readers check what they take


def parse_json(text: str | bytes) -> Any:
    """What a text says; ValueError if it is no JSON, or nested too deep to be read."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
