"""What knobs accept, at the server and at the client alike."""

from __future__ import annotations

import pytest

from clients.catalog import EnvironmentInfo, environment_from_proto
from clients.knobs import checked_knobs
from env_server.environment import EnvironmentSpec, KnobError, KnobSpec
from env_server.listing import environment_to_proto
from longturn.errors import ConfigError, WireError
from longturn.knobs import KnobValueError, read_knob
from longturn.records import KnobValue
from longturn.v1 import environment_pb2

SPEC = EnvironmentSpec(
    name="made_up",
    version="1",
    data_hash="",
    action_format="any",
    max_turns=1,
    knobs=(
        KnobSpec(name="depth", kind="int", default=2, minimum=1, maximum=9),
        KnobSpec(name="seed", kind="int", default=0, minimum=0),
        KnobSpec(name="share", kind="float", default=0.5, maximum=1),
        KnobSpec(name="is_easy", kind="bool", default=False),
        KnobSpec(name="level", kind="choice", default="1", choices=("1", "two")),
    ),
)
ACCEPTED: list[tuple[str, KnobValue, KnobValue]] = [
    ("depth", 3, 3),
    ("depth", 3.0, 3),
    ("depth", " 3.0 ", 3),
    ("seed", "1e3", 1000),
    ("seed", str(2**53 + 1), 2**53 + 1),
    ("share", 1, 1.0),
    ("share", "-0.25", -0.25),
    ("is_easy", True, True),
    ("is_easy", "1", True),
    ("is_easy", "Yes", True),
    ("is_easy", " no", False),
    ("level", "two", "two"),
    ("level", 1, "1"),
]
REFUSED: list[tuple[str, KnobValue, str]] = [
    ("depth", 10, r"is a whole number in \[1, 9\]; got 10"),
    ("depth", 2.5, "whole number"),
    ("depth", True, "whole number"),
    ("seed", -1, "is a whole number of at least 0"),
    ("seed", 10**400, "is a whole number"),
    ("share", "nan", "is a number of at most 1"),
    ("share", "lots", "got 'lots'"),
    ("is_easy", "maybe", "is true or false; got 'maybe'"),
    ("is_easy", 1, "is true or false"),
    ("level", "tow", "is one of 1, two; got 'tow'; did you mean 'two'"),
]


def info() -> EnvironmentInfo:
    return environment_from_proto(environment_to_proto(SPEC))


@pytest.mark.parametrize(("name", "given", "expected"), ACCEPTED)
def test_both_sides_read_a_value_alike(name: str, given: KnobValue, expected: KnobValue) -> None:
    at_client = checked_knobs(info(), {name: given})[name]
    assert at_client == SPEC.resolve_knobs({name: given})[name] == expected
    assert type(at_client) is type(expected)


@pytest.mark.parametrize(("name", "given", "message"), REFUSED)
def test_both_sides_refuse_a_value_in_the_same_words(name: str, given: KnobValue, message: str) -> None:
    with pytest.raises(KnobError, match=message):
        SPEC.resolve_knobs({name: given})
    with pytest.raises(ConfigError, match=message):
        checked_knobs(info(), {name: given})


def test_a_number_without_bounds_is_any_number() -> None:
    knob = KnobSpec(name="free", kind="float", default=0.0)
    assert read_knob(knob, "-1e9") == -1e9
    with pytest.raises(KnobValueError, match="is a number; got 'inf'"):
        read_knob(knob, "inf")


def test_a_knob_of_an_unknown_kind_is_a_malformed_message() -> None:
    message = environment_to_proto(SPEC)
    message.knobs[0].kind = environment_pb2.KNOB_KIND_UNSPECIFIED
    with pytest.raises(WireError, match="'depth' has the unknown kind"):
        environment_from_proto(message)
