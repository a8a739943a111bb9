"""Real data sets for tests, where they are at hand: folders under `LONGTURN_TEST_DATA`, else beside the checkout."""

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).resolve().parents[4] / "shared" / "data"


def sample(name: str) -> Path:
    """The folder of a data set; skips the test where it is not there."""
    folder = Path(os.environ.get("LONGTURN_TEST_DATA", _BESIDE)) / name
    if not folder.is_dir():
        pytest.skip(f"no data set {name} at {folder}; set LONGTURN_TEST_DATA to the folder that holds it")
    return folder
