"""What follows from what an engine says of itself."""

from __future__ import annotations

import json

import pytest

from longturn.engine_facts import EngineFacts, read_server_info
from longturn.records import LogprobConvention


def facts(**fields: object) -> EngineFacts:
    return read_server_info(json.dumps(fields).encode())


def sglang(version: str) -> EngineFacts:
    return facts(version=version, internal_states=[{}])


@pytest.mark.parametrize(
    ("version", "abilities"),
    [
        ("0.5.2", (False, False, False, False)),
        ("0.5.6.post2", (True, False, False, False)),
        ("0.5.18", (True, True, False, False)),
        ("0.5.19", (True, True, True, False)),
        ("0.5.21", (True, True, True, True)),
        ("0.5.23", (True, True, True, True)),
        ("0.6.0rc1", (True, True, True, True)),
    ],
)
def test_abilities_follow_the_release(version: str, abilities: tuple[bool, ...]) -> None:
    found = sglang(version)
    assert found.name == "sglang"
    assert found.version == version
    assert (found.has_pause_modes, found.has_cache_salt, found.has_version_spans, found.brackets_updates) == abilities


def test_another_engine_names_itself_and_the_release_it_speaks_like() -> None:
    found = facts(engine="mine", version="9.9.9", sglang_dialect="0.5.20", logprobs="after temperature")
    assert (found.name, found.version, found.dialect) == ("mine", "9.9.9", (0, 5, 20))
    assert found.logprob_convention is LogprobConvention.AFTER_TEMPERATURE


def test_what_is_not_said_is_not_assumed() -> None:
    found = facts(version="0.5.23")
    assert (found.name, found.dialect, found.logprob_convention) == ("", None, None)
    assert not any((found.has_version_spans, found.has_pause_modes, found.brackets_updates))


def test_no_object_is_an_error() -> None:
    with pytest.raises(ValueError, match="no JSON object"):
        read_server_info(b"[]")


def test_an_answer_nested_too_deep_is_an_error() -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        read_server_info(b"[" * 100_000)
