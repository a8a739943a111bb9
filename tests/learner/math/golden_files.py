"""Reads the golden numbers."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_FOLDER = Path(__file__).parents[2] / "golden"
_SPECIAL = {"inf": math.inf, "-inf": -math.inf}


def golden(name: str) -> dict[str, Any]:
    return json.loads((_FOLDER / f"{name}.json").read_text())


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def assert_close(actual: Tensor | float, expected: Any, tolerance: float) -> None:
    torch.testing.assert_close(
        torch.as_tensor(actual, dtype=torch.float64), double(expected), atol=tolerance, rtol=tolerance
    )
