"""The list of faults names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_fault_in_the_list_is_shown_by_a_test() -> None:
    document = (ROOT / "docs" / "field-faults.md").read_text(encoding="utf-8")
    found = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.M)
    }
    named = set(re.findall(r"`(test_\w+)`", document))
    assert named - found == set()
    rows = [line for line in document.splitlines() if line.startswith("| [")]
    assert len(rows) == 37
    assert all("`test_" in row or "| none: " in row for row in rows)
