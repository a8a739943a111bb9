"""Which command an action means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_server.environments.alfworld_commands import MAX_ACTION_CHARS, match_command

COMMANDS = (
    "go to cabinet 1",
    "go to cabinet 2",
    "go to diningtable 1",
    "take apple 1 from diningtable 1",
    "take apple 2 from diningtable 1",
    "take mug 1 from diningtable 1",
    "move mug 1 to diningtable 1",
    "heat apple 1 with microwave 1",
    "use desklamp 1",
    "close fridge 1",
    "examine diningtable 1",
    "look",
    "inventory",
    "help",
)


@pytest.mark.parametrize(
    ("action", "meant"),
    [
        ("go to cabinet 1", "go to cabinet 1"),
        (" go to cabinet 1\n", "go to cabinet 1"),
        ("GO TO CABINET 1", None),
        ("go to  cabinet 1", None),
        ("go to diningtable", None),
        ("put mug 1 in/on diningtable 1", None),
        ("", None),
    ],
)
def test_exact_matching_takes_what_alfworld_takes(action: str, meant: str | None) -> None:
    assert match_command(action, COMMANDS, is_forgiving=False) == meant


@pytest.mark.parametrize(
    ("action", "meant"),
    [
        ("GO TO Cabinet 1", "go to cabinet 1"),
        ("> go to  cabinet   2.", "go to cabinet 2"),
        ("goto the diningtable", "go to diningtable 1"),
        ("walk to diningtable 1", "go to diningtable 1"),
        ("put mug 1 in/on diningtable 1", "move mug 1 to diningtable 1"),
        ("put mug 1 on diningtable 1", "move mug 1 to diningtable 1"),
        ("Place the mug in the diningtable.", "move mug 1 to diningtable 1"),
        ("pick up mug 1 from diningtable 1", "take mug 1 from diningtable 1"),
        ("take mug", "take mug 1 from diningtable 1"),
        ("pick up apple 2", "take apple 2 from diningtable 1"),
        ("heat the apple", "heat apple 1 with microwave 1"),
        ("take apple", None),
        ("warm apple 1 in the microwave", "heat apple 1 with microwave 1"),
        ("turn on the desklamp", "use desklamp 1"),
        ("toggle desklamp 1", "use desklamp 1"),
        ("shut fridge", "close fridge 1"),
        ("look at diningtable", "examine diningtable 1"),
        ("look around", "look"),
        ("i", "inventory"),
    ],
)
def test_forgiving_matching_takes_other_spellings_of_one_command(action: str, meant: str | None) -> None:
    assert match_command(action, COMMANDS, is_forgiving=True) == meant


@pytest.mark.parametrize("action", ["go to cabinet", "take apple from diningtable", "go", "take", "to", "1", "open"])
def test_what_may_mean_several_commands_means_none(action: str) -> None:
    assert match_command(action, COMMANDS, is_forgiving=True) is None


def test_every_command_means_itself_in_both_ways() -> None:
    for command in COMMANDS:
        assert match_command(command, COMMANDS, is_forgiving=False) == command
        assert match_command(command, COMMANDS, is_forgiving=True) == command


@given(
    action=st.one_of(
        st.text(max_size=MAX_ACTION_CHARS + 50),
        st.text(alphabet="abcdegilnopt 12./", max_size=40),
        st.sampled_from(["\x00", "［go］［cabinet］", "(((", "a" * 2**20, "put on on on in", "go to to to", "\\1 \\2"]),
    )
)
def test_any_text_means_a_command_or_none(action: str) -> None:
    for is_forgiving in (False, True):
        assert match_command(action, COMMANDS, is_forgiving=is_forgiving) in {None, *COMMANDS}
