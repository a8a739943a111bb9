"""Whatever is wrong with a JSON text from outside is one kind of error."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.policies.sglang_reply import segment_from_reply
from longturn.config import read_toml
from longturn.errors import ConfigError, PolicyError
from longturn.json_text import parse_json
from longturn.task_file import read_tasks

DEEP = "[" * 100_000


@pytest.mark.parametrize("text", [DEEP, DEEP.encode(), '{"a":' * 100_000, "{", b"\xff", ""])
def test_what_cannot_be_read_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_a_task_file_that_is_nested_too_deep_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(f'{{"environment": "echo", "task_id": "t"}}\n{DEEP}\n')
    with pytest.raises(ConfigError, match=r"tasks\.jsonl, line 2: it is nested too deep"):
        read_tasks(path)


def test_settings_that_are_nested_too_deep_are_named(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"a = {DEEP}")
    with pytest.raises(ConfigError, match=r"config\.toml is not valid TOML"):
        read_toml(path)


def test_an_engines_reply_that_is_nested_too_deep_is_a_bad_reply() -> None:
    with pytest.raises(PolicyError, match="nested too deep") as caught:
        segment_from_reply(DEEP.encode(), who="engine")
    assert caught.value.reason == "BAD_REPLY"
