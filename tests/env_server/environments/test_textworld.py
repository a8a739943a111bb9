"""Episodes of real games."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from env_server.environment import KnobError, KnobValue, TaskNotFoundError, Transition
from env_server.environments.textworld import MAX_ACTION_CHARS, NOT_HERE, NOT_PLAIN, TextWorldEnvironment
from env_server.environments.textworld_cache import GameCache, default_cache_root
from env_server.environments.textworld_tasks import parse_task_id

COIN = "coin_collector/level=116/train/000001"
SHORT_COIN = "coin_collector/level=104/test/000000"
COOKING = "cooking/recipe=2,take=2,go=6,open=1,cook=1,cut=1,drop=0/train/000000"
SIMPLE = "simple/rewards=dense,goal=brief/test/000000"
HUNT = "treasure_hunter/level=11/valid/000000"
QUEST = "quest/length=30,rooms=6/train/000000"
LIMITED = "cooking/recipe=3,take=3,go=9,open=1,cook=1,cut=1,drop=1/valid/000000"
ONE_OF_EACH = (COIN, COOKING, SIMPLE, HUNT, QUEST, LIMITED)

# fmt: off
WANDERING = (
    "go north", "go south", "look", "go east", "go west", "inventory", "take coin", "go up", "xyzzy", "wait",
) * 3
# fmt: on

pytestmark = pytest.mark.usefixtures("games")


def start(task_id: str, **knobs: KnobValue) -> tuple[TextWorldEnvironment, Transition]:
    environment = TextWorldEnvironment()
    return environment, environment.reset(task_id, 0, knobs)


def play(
    task_id: str, actions: tuple[str, ...], seed: int = 0, knobs: Mapping[str, KnobValue] | None = None
) -> list[Transition]:
    environment = TextWorldEnvironment()
    transitions = [environment.reset(task_id, seed, knobs or {})]
    for action in actions:
        if not transitions[-1].is_terminal:
            transitions.append(environment.step(action))
    environment.close()
    return transitions


def play_oracle(environment: TextWorldEnvironment, *, limit: int = 150) -> list[Transition]:
    transitions: list[Transition] = []
    while not (transitions and transitions[-1].is_terminal):
        action = environment.oracle()
        assert action is not None
        transitions.append(environment.step(action))
        assert len(transitions) < limit
    return transitions


@pytest.mark.parametrize("task_id", ONE_OF_EACH)
def test_the_oracle_wins_and_the_rewards_sum_to_the_score(task_id: str) -> None:
    environment, first = start(task_id)
    transitions = play_oracle(environment)
    last = transitions[-1]
    entry = GameCache(default_cache_root(os.environ)).find(parse_task_id(task_id))
    assert entry is not None
    assert last.success
    assert last.progress == 1.0
    assert sum(transition.reward for transition in transitions) == last.score == entry.facts.score_max
    assert all(transition.action_valid for transition in transitions)
    assert not any(transition.success for transition in transitions[:-1])
    assert first.reward == first.score == 0.0
    assert environment.oracle() is None


@pytest.mark.parametrize("task_id", ONE_OF_EACH)
def test_idling_earns_nothing(task_id: str) -> None:
    transitions = play(task_id, ("wait", "look", "nonsense") * 12)
    assert not any(transition.is_terminal or transition.success or transition.reward for transition in transitions)


def test_the_oracle_of_long_quests_needs_as_many_turns_as_the_id_says() -> None:
    environment, _ = start(QUEST)
    assert len(play_oracle(environment)) >= 30


@pytest.mark.parametrize("task_id", ONE_OF_EACH)
def test_progress_rises_to_one_along_the_oracle(task_id: str) -> None:
    environment, first = start(task_id)
    progress = [first.progress, *(transition.progress for transition in play_oracle(environment))]
    values = [value for value in progress if value is not None]
    assert len(values) == len(progress)
    assert values == sorted(values)
    assert values[-1] == 1.0


def test_coin_collector_knows_the_way_from_every_room() -> None:
    environment, first = start(COIN)
    wandering = [environment.step(action) for action in WANDERING]
    assert first.progress is not None
    for before, after in zip([first, *wandering], wandering, strict=False):
        assert before.progress is not None
        assert after.progress is not None
        moved = after.observation.startswith("-= ") and after.observation != before.observation
        assert moved or before.progress == after.progress
    assert play_oracle(environment)[-1].success


@pytest.mark.parametrize("task_id", [COOKING, SIMPLE, QUEST])
def test_the_oracle_finds_back_from_detours(task_id: str) -> None:
    environment, _ = start(task_id)
    turn = 0
    while True:
        action = environment.oracle()
        assert action is not None
        if environment.step(action).is_terminal:
            break
        turn += 1
        environment.step(("go north", "go west", "look", "go south", "go east", "nonsense")[turn % 6])
    assert environment.oracle() is None


def test_the_oracle_falls_silent_after_the_world_was_changed_off_the_walkthrough() -> None:
    environment, _ = start(SIMPLE)
    for action in ("open chest drawer", "open antique trunk", "take old key"):
        environment.step(action)
    transition = environment.step("drop old key")
    assert environment.oracle() is None
    assert transition.progress is None


def test_policy_commands_lead_the_oracle_from_any_state() -> None:
    environment, first = start(SIMPLE, policy_commands=True)
    assert first.extras["policy_commands"]
    for action in ("open chest drawer", "open antique trunk", "take old key", "drop old key"):
        environment.step(action)
    assert environment.oracle() is not None
    assert play_oracle(environment)[-1].success


@pytest.mark.parametrize("task_id", [COIN, COOKING])
def test_an_episode_is_fixed_by_its_task_for_many_seeds(task_id: str) -> None:
    num_seeds = int(os.environ.get("LONGTURN_TEST_SEEDS", "8"))
    episodes = [play(task_id, WANDERING, seed) for seed in range(num_seeds)]
    assert all(episode == episodes[0] for episode in episodes)


def test_state_hashes_tell_states_apart() -> None:
    transitions = play(COIN, WANDERING)
    assert len({transition.state_hash for transition in transitions}) > len(transitions) // 2


def test_another_process_plays_the_same_episode() -> None:
    script = (
        "from env_server.environments.textworld import TextWorldEnvironment as E; e = E();"
        f"print(e.reset({COOKING!r}, 5, {{}}).state_hash.hex());"
        f"[print(e.step(a).state_hash.hex()) for a in {WANDERING!r}]"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == [transition.state_hash.hex() for transition in play(COOKING, WANDERING)]


def test_the_first_observation_is_the_room_without_banner_and_objective() -> None:
    _, first = start(COIN)
    assert first.observation.startswith("-= ")
    assert "$" not in first.observation
    assert ">" not in first.observation
    assert "coin" not in first.observation
    _, told = start(COIN, show_objective=True)
    assert told.observation.endswith(first.observation)
    assert "coin" in told.observation


def test_a_goal_without_the_way_is_told_where_the_task_needs_it() -> None:
    assert "cookbook" in start(COOKING)[1].observation
    assert re.match(r"Your task: find the .+ and take it\. Take nothing else\.\n\n-= ", start(HUNT)[1].observation)
    assert start(QUEST)[1].observation.startswith("Your task: put the ")
    assert "go " not in start(QUEST)[1].observation.split("\n")[0]


@pytest.mark.parametrize(
    "action",
    ["restart", "QUIT", "q", "save", "restore", "undo", "script", "transcripts", "verify", "version", "superbriefly",
     "record", "replay", "yes", "y", "no", "goal",
     "tw-extra-infos score", "tw-print version", "restrict commands",
     "enable print state option", "go north then go south", "score", "again", "oops north", "nouns",
     "tw-trace-actions"],
)  # fmt: skip
def test_meta_commands_are_refused_and_change_nothing(action: str) -> None:
    environment, first = start(COIN)
    refused = environment.step(action)
    assert refused.observation == NOT_HERE
    assert not refused.action_valid
    assert refused.reward == 0.0
    assert not refused.is_terminal
    assert environment.step("look").observation == first.observation


@pytest.mark.parametrize(
    "action",
    ["", "   ", "go north. go south", "me, go north", "go\nnorth", "go\x0enorth", "\x00", "\x1b", "\x08" * 5, "идти",
     "\udc80", "go north\ud800", "a" * (MAX_ACTION_CHARS + 1), "look " * 100_000, "<look>", "print_state", "'", "🙂"],
)  # fmt: skip
def test_text_outside_the_whitelist_never_reaches_the_game(action: str) -> None:
    environment, first = start(COIN)
    refused = environment.step(action)
    assert refused.observation == NOT_PLAIN
    assert not refused.action_valid
    assert environment.step("look").observation == first.observation


@pytest.mark.parametrize(
    ("action", "is_valid"),
    [("xyzzy", False), ("take rainbow", False), ("go up", False), ("take", False), ("look", True), ("inventory", True),
     ("  open   chest drawer. \n", True), ("OPEN CHEST DRAWER", True), ("open wooden door", True), ("go east", True)],
)  # fmt: skip
def test_validity_follows_the_parser(action: str, is_valid: bool) -> None:
    environment, _ = start(SIMPLE)
    assert environment.step(action).action_valid is is_valid


def test_a_lost_game_is_terminal_without_success() -> None:
    environment, _ = start(COOKING)
    last = None
    while last is None or not last.is_terminal:
        action = environment.oracle() or ""
        if action.startswith(("cook ", "slice ", "chop ", "dice ")):
            food = action.split(" with ")[0].split(" ", 1)[1]
            for wrong in (f"cook {food} with stove", f"cook {food} with oven", f"cook {food} with stove"):
                last = environment.step(wrong) if last is None or not last.is_terminal else last
        else:
            last = environment.step(action)
    assert not last.success
    assert "You lost" in last.observation
    assert environment.oracle() is None


def test_extras_come_on_request_only_and_leave_the_text_alone() -> None:
    plain = play(SIMPLE, ("open antique trunk", "take old key", "go east", "look"))
    names = ("admissible_actions", "facts", "inventory", "description", "policy_commands")
    knobs: dict[str, KnobValue] = dict.fromkeys(names, True)
    told = play(SIMPLE, ("open antique trunk", "take old key", "go east", "look"), knobs=knobs)
    assert [transition.observation for transition in told] == [transition.observation for transition in plain]
    assert [transition.reward for transition in told] == [transition.reward for transition in plain]
    assert all(not transition.extras and transition.admissible_actions is None for transition in plain)
    assert told[0].admissible_actions is not None
    assert "open antique trunk" in told[0].admissible_actions
    assert "old key" in told[2].extras["inventory"]
    assert told[1].extras["description"].startswith("-= Bedroom =-")
    assert "open(antique trunk: c)" in told[1].extras["facts"]


def test_stepping_after_the_end_or_before_the_start_is_a_bug() -> None:
    with pytest.raises(RuntimeError):
        TextWorldEnvironment().step("look")
    environment, _ = start(SHORT_COIN)
    play_oracle(environment)
    with pytest.raises(RuntimeError):
        environment.step("look")


def test_bad_knobs_and_tasks_are_named() -> None:
    with pytest.raises(KnobError, match="show_objective"):
        start(COIN, show_objectives=True)
    with pytest.raises(KnobError, match="true or false"):
        start(COIN, facts=3)
    with pytest.raises(TaskNotFoundError, match="level=116"):
        start("coin_collector/level=116/train/1")


def test_one_instance_plays_many_episodes() -> None:
    environment = TextWorldEnvironment()
    for task_id in (COIN, SIMPLE, COIN):
        first = environment.reset(task_id, 0, {})
        assert first == start(task_id)[1]


_EXAMPLES = (
    "\x0e",
    "\x00look",
    "\ud800",
    "north" * 200_000,
    "[look]",
    "go east\r\ngo west",
    "\x10\x11\x12\x13",
    "\x7f\x9b",
)


@given(
    action=st.one_of(
        st.text(max_size=300), st.text(alphabet="abcdeghinortx '-.", max_size=40), st.sampled_from(_EXAMPLES)
    )
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(action="save")
@example(action="script")
def test_no_text_breaks_an_episode(fuzzed: TextWorldEnvironment, action: str) -> None:
    transition = fuzzed.step(action)
    if transition.is_terminal:
        fuzzed.reset(COOKING, 0, {})
    assert transition.observation


@pytest.fixture
def fuzzed(empty_folder: Path) -> TextWorldEnvironment:
    environment, _ = start(COOKING)
    return environment


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_episode_writes_no_file(empty_folder: Path) -> None:
    environment, _ = start(SIMPLE)
    words = (
        "save",
        "script",
        "look",
        "\x0e",
        "record",
        "replay",
        "go east",
        "transcript on",
        "open antique trunk",
        "x\x10y",
    )
    for turn in range(300):
        environment.step(f"{words[turn % len(words)]}{chr(turn % 128) if turn % 3 else ''}")
    assert list(empty_folder.iterdir()) == []
