"""Rows of measurements on a disk that fills up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longturn.disk import DiskError
from longturn.metrics import MetricsFile
from tests.support.full_disk import largest_file


def test_a_row_that_finds_no_room_is_an_error_and_leaves_the_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with MetricsFile(path) as rows:
        rows.write("batch", 0, {"note": "x" * 100})
        with largest_file(200), pytest.raises(DiskError, match=r"rows\.jsonl cannot be written: .*free space"):
            rows.write("batch", 1, {"note": "y" * 100})
        rows.write("batch", 2, {"loss": 0.5})
    assert [json.loads(line)["batch"] for line in path.read_text().splitlines()] == [0, 2]


def test_a_device_without_room_is_named() -> None:
    with MetricsFile(Path("/dev/full")) as rows, pytest.raises(DiskError, match="/dev/full cannot be written"):
        rows.write("batch", 0, {})
