"""Whatever reason a user may read is explained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from learner.state import EndReason

ROOT = Path(__file__).resolve().parents[2]
_OF_ERRORS = re.compile(r'\breason(?:: str)? ?= ?"([A-Z_]+)"')


def reasons_of_errors() -> set[str]:
    """Reasons that the contract's own errors carry."""
    texts = (path.read_text() for path in (ROOT / "longturn").rglob("*.py") if path.parent.name != "v1")
    return {reason for text in texts for reason in _OF_ERRORS.findall(text)}


def test_the_sources_are_read_as_they_are_written() -> None:
    assert {
        "LONGTURN_ERROR",
        "BAD_CONFIG",
        "EPISODE_LOST",
        "DISK_FULL",
        "FILE_ERROR",
        "WARM_START_GATE",
    } <= reasons_of_errors()


@pytest.mark.parametrize("reason", sorted(reasons_of_errors() | {reason.value for reason in EndReason}))
def test_every_reason_has_a_row(reason: str) -> None:
    rows = [line for line in (ROOT / "docs" / "troubleshooting.md").read_text().splitlines() if line.startswith("|")]
    assert any(f"`{reason}`" in row.split("|")[1] for row in rows)
