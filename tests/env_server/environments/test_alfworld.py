"""Episodes of generated and of real games. Needs the extra `server-alfworld`."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from env_server.environment import EnvironmentBrokenError, KnobError, KnobValue, TaskNotFoundError, Transition
from env_server.environments.alfworld import AlfworldEnvironment
from env_server.environments.alfworld_episode import NOTHING_HAPPENS
from env_server.environments.alfworld_files import DATA_VARIABLE, SPLITS, TASK_TYPES, game_file, open_index
from env_server.environments.alfworld_generator import draw_task, generated_game, world_of
from env_server.environments.alfworld_goals import parse_goal
from env_server.environments.alfworld_planner import Planner
from env_server.environments.alfworld_rooms import HELD_OUT
from env_server.environments.alfworld_translation import cached, obtain_translation
from env_server.environments.textworld_cache import CACHE_VARIABLE
from longturn.extras import how_to_install
from tests.env_server.environments.samples import sample

ONE = "generated/goals=1/train/000000"
TWO = "generated/goals=2/train/000000"
THREE = "generated/goals=3/valid_unseen/000000"

needs_alfworld = pytest.mark.skipif(
    importlib.util.find_spec("fast_downward") is None,
    reason=f"the extra server-alfworld is not installed; {how_to_install('server-alfworld')}",
)
pytestmark = [pytest.mark.usefixtures("games"), needs_alfworld]


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of real games, named by the variable for this test."""
    folder = sample("alfworld")
    monkeypatch.setenv(DATA_VARIABLE, str(folder))
    return folder


def start(task_id: str, **knobs: KnobValue) -> tuple[AlfworldEnvironment, Transition]:
    environment = AlfworldEnvironment()
    return environment, environment.reset(task_id, 0, knobs)


def play_oracle(environment: AlfworldEnvironment, *, limit: int = 100) -> list[Transition]:
    transitions: list[Transition] = []
    while not (transitions and transitions[-1].is_terminal) and len(transitions) < limit:
        action = environment.oracle()
        assert action is not None
        transitions.append(environment.step(action))
    return transitions


def play(task_id: str, actions: list[str]) -> list[Transition]:
    environment, first = start(task_id)
    transitions = [first, *(environment.step(action) for action in actions)]
    environment.close()
    return transitions


@pytest.mark.parametrize("task_id", [ONE, TWO, THREE])
@pytest.mark.parametrize("expert", ["walkthrough", "handcoded"])
def test_the_oracle_wins_and_the_rewards_sum_to_the_score(task_id: str, expert: str) -> None:
    environment, first = start(task_id, expert=expert)
    transitions = play_oracle(environment)
    last = transitions[-1]
    assert last.success
    assert last.score == last.progress == sum(transition.reward for transition in transitions) == 1.0
    assert all(transition.action_valid for transition in transitions)
    assert not any(transition.success for transition in transitions[:-1])
    assert first.reward == first.score == first.progress == 0.0
    assert environment.oracle() is None
    with pytest.raises(RuntimeError):
        environment.step("look")
    environment.close()


def test_the_explorer_acts_on_what_the_episode_has_shown_alone() -> None:
    environment, first = start(TWO, expert="handcoded")
    told = first.observation
    action = environment.oracle()
    while action is not None:
        words = action.replace(" to ", " ").replace(" from ", " ").replace(" with ", " ").split()
        things = [f"{word} {number}" for word, number in pairwise(words) if number.isdigit()]
        assert all(thing in told for thing in things), action
        told += environment.step(action).observation
        action = environment.oracle()
    environment.close()


def test_the_oracle_finds_back_after_any_detour() -> None:
    environment, first = start(TWO, admissible_actions=True)
    transition = first
    for turn in range(12):
        assert transition.admissible_actions is not None
        choices = [action for action in transition.admissible_actions if not action.startswith(("look", "help"))]
        transition = environment.step(choices[7 * turn % len(choices)])
        assert not transition.is_terminal
    assert play_oracle(environment)[-1].success
    environment.close()


def test_a_game_says_room_and_task_and_answers_in_alfworlds_words() -> None:
    environment, first = start(TWO)
    assert first.observation.startswith("-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room.")
    assert "\n\nYour task is to: put " in first.observation
    place = first.observation.split("you see a ")[1].split(",")[0]
    assert environment.step(f"go to {place}").observation.startswith(f"You arrive at {place}. ")
    assert environment.step("inventory").observation == "You are not carrying anything."
    assert "Available commands:" in environment.step("help").observation
    environment.close()


@pytest.mark.parametrize("action", ["", "wait", "GO TO SHELF 1", "go to nowhere 1", "\x00", "take", "a" * 10_000, "🙂"])
def test_what_is_no_command_changes_nothing(action: str) -> None:
    environment, first = start(TWO)
    before = environment.step("look")
    refused = environment.step(action)
    assert refused.observation == NOTHING_HAPPENS
    assert not refused.action_valid
    assert refused.progress == before.progress
    assert environment.step("look").state_hash == before.state_hash
    assert not first.is_terminal
    environment.close()


def test_matching_is_exact_unless_it_is_asked_to_forgive() -> None:
    environment, first = start(TWO, matching="forgiving")
    place = first.observation.split("you see a ")[1].split(",")[0]
    assert environment.step(f"Walk to the {place.upper()}!").action_valid
    environment.close()
    environment, _ = start(TWO)
    assert not environment.step(f"Walk to the {place.upper()}!").action_valid
    environment.close()


def test_admissible_actions_and_facts_come_on_request_only() -> None:
    environment, plain = start(TWO)
    assert plain.admissible_actions is None
    assert not plain.extras
    environment.close()
    environment, told = start(TWO, admissible_actions=True, facts=True)
    assert told.observation == plain.observation
    assert told.state_hash == plain.state_hash
    assert told.admissible_actions is not None
    assert {"look", "inventory", "help"} <= set(told.admissible_actions)
    assert list(told.admissible_actions) == sorted(set(told.admissible_actions))
    assert any(fact.startswith("receptacleatlocation(") for fact in told.extras["facts"].split("\n"))
    for action in told.admissible_actions:
        assert environment.step(action).action_valid
        environment.reset(TWO, 0, {"admissible_actions": True})
    environment.close()


def test_episodes_repeat_also_beside_each_other() -> None:
    actions = list(generated_game(TWO, "train", 2).walkthrough)
    alone = play(TWO, actions)
    pairs = [start(TWO)[0], start(ONE)[0]]
    beside: list[Transition] = []
    for action in actions:
        beside.append(pairs[0].step(action))
        pairs[1].step("look")
    assert beside == alone[1:]
    for environment in pairs:
        environment.close()


def test_another_process_plays_the_same_episode() -> None:
    actions = list(generated_game(ONE, "train", 1).walkthrough)
    script = (
        "from env_server.environments.alfworld import AlfworldEnvironment as E; e = E();"
        f"print(e.reset({ONE!r}, 5, {{}}).state_hash.hex());"
        f"[print(e.step(a).state_hash.hex()) for a in {actions!r}]"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [transition.state_hash.hex() for transition in play(ONE, actions)]


def test_there_are_no_more_copies_of_the_library_than_games_at_once() -> None:
    num_mapped: list[int] = []
    for _ in range(3):
        episodes = [start(ONE)[0] for _ in range(6)]
        num_mapped.append(len({line.split()[4] for line in mapped_libraries()}))
        for environment in episodes:
            environment.close()
            environment.close()
    assert num_mapped[0] == num_mapped[1] == num_mapped[2] >= 6


def mapped_libraries() -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "libdownward" in line]


def test_a_process_that_played_ends_well() -> None:
    script = (
        "from env_server.environments.alfworld import AlfworldEnvironment as E\n"
        "for _ in range(3):\n"
        "    games = [E() for _ in range(3)]\n"
        f"    for game in games: game.reset({ONE!r}, 0, {{}})\n"
        "    for game in games: game.close()\n"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_a_damaged_translation_is_made_anew() -> None:
    game = generated_game(ONE, "train", 1)
    whole = obtain_translation(game)
    (path,) = Path(os.environ[CACHE_VARIABLE]).glob(f"alfworld/translated/*/{game.key}.z")
    path.write_bytes(path.read_bytes()[:100])
    assert obtain_translation(game) == whole
    path.write_bytes(b"")
    assert obtain_translation(game) == whole


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "alfworld").write_text("in the way")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    with pytest.raises(EnvironmentBrokenError, match="set LONGTURN_CACHE"):
        cached("kind", "key", dict)


def test_ids_are_stable_and_bad_ones_are_answered_with_the_nearest() -> None:
    listed = AlfworldEnvironment.tasks("valid_seen", 3, 10)
    assert listed == AlfworldEnvironment.tasks("valid_seen", 3, 10)
    assert [AlfworldEnvironment.task(info.task_id) for info in listed] == list(listed)
    assert AlfworldEnvironment.num_tasks("valid_unseen", {"goals": "5"}) == 10_000
    with pytest.raises(TaskNotFoundError, match="goals=1/train/000001"):
        AlfworldEnvironment.task("generated/goals=1/train/1")
    with pytest.raises(TaskNotFoundError, match=DATA_VARIABLE):
        AlfworldEnvironment.task("file/train/x/y")
    with pytest.raises(KnobError, match="valid_seen"):
        AlfworldEnvironment.tasks("valid")
    with pytest.raises(KnobError, match="exact"):
        start(ONE, matching="exakt")


def test_splits_differ_by_layout_and_object() -> None:
    drawn = {
        split: [draw_task(f"generated/goals={goals}/{split}/{index:06d}", split, goals)
                for goals in (1, 2) for index in range(6)]
        for split in SPLITS
    }  # fmt: skip
    layouts = {split: {room.layout for room, _, _ in games} for split, games in drawn.items()}
    asked = {split: {goal.object_type for _, goals, _ in games for goal in goals} for split, games in drawn.items()}
    assert not layouts["valid_unseen"] & (layouts["train"] | layouts["valid_seen"])
    assert asked["valid_unseen"] <= HELD_OUT
    assert not (asked["train"] | asked["valid_seen"]) & HELD_OUT


def test_a_missing_folder_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(EnvironmentBrokenError, match=r"^ALFWORLD_DATA names .*/none, which is no folder; set it to"):
        AlfworldEnvironment.warm_up()
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "empty"))
    with pytest.raises(EnvironmentBrokenError, match=r"holds no game.tw-pddl; set it to"):
        AlfworldEnvironment.warm_up()


def test_a_bad_game_file_is_listed_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    game = generated_game(ONE, "train", 1)
    good = json.loads(game_file(replace(game, walkthrough=())))
    contents = {
        "good": json.dumps(good),
        "cut": json.dumps(good)[:1000],
        "list": "[]",
        "unsolvable": json.dumps(good | {"solvable": False}),
        "without": json.dumps({"solvable": True}),
    }
    for name, content in contents.items():
        folder = tmp_path / "json_2.1.1" / "train" / "pick_and_place_simple-Cup-None-Desk-1" / name
        folder.mkdir(parents=True)
        (folder / "game.tw-pddl").write_text(content)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    filters = {"source": "file"}
    assert [info.task_id.split("/")[-1] for info in AlfworldEnvironment.tasks("train", 0, 10, filters)] == ["good"]
    index = open_index(str(tmp_path))
    assert sorted(task_id.split("/")[-1] for task_id in index.quarantined) == ["cut", "list", "unsolvable", "without"]
    AlfworldEnvironment.warm_up()
    assert "4 game files are left out" in AlfworldEnvironment.spec.description
    with pytest.raises(TaskNotFoundError, match="quarantined: it is not marked as solvable"):
        AlfworldEnvironment.task("file/train/pick_and_place_simple-Cup-None-Desk-1/unsolvable")
    environment, first = start(AlfworldEnvironment.tasks("train", 0, 1, filters)[0].task_id)
    assert play_oracle(environment)[-1].success  # the file names no walkthrough: the planner finds the way
    assert first.observation == start(ONE)[1].observation
    environment.close()


def test_a_file_that_goes_bad_later_breaks_its_own_episode_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = next((sample("alfworld") / "json_2.1.1" / "train").glob("*/*/game.tw-pddl"))
    path = tmp_path / "json_2.1.1" / "train" / source.parent.parent.name / "trial" / source.name
    path.parent.mkdir(parents=True)
    shutil.copy(source, path)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    task_id = AlfworldEnvironment.tasks("train", 0, 1, {"source": "file"})[0].task_id
    path.write_text("{")
    with pytest.raises(EnvironmentBrokenError, match="restore it and restart the server"):
        start(task_id)
    path.write_text(json.dumps(json.loads(source.read_bytes()) | {"pddl_problem": "(define (problem"}))
    with pytest.raises(EnvironmentBrokenError, match=rf"{task_id}: the PDDL cannot be translated"):
        start(task_id)


def test_real_games_are_listed_by_split_and_type(real: Path) -> None:
    for split in SPLITS:
        listed = AlfworldEnvironment.tasks(split, 0, 1000, {"source": "file"})
        assert {info.knobs["type"] for info in listed} == set(TASK_TYPES)
        assert all((real / "json_2.1.1" / info.task_id.removeprefix("file/")).is_dir() for info in listed)
        assert AlfworldEnvironment.num_tasks(split, {"type": TASK_TYPES[0]}) == len(listed) / 6
    AlfworldEnvironment.warm_up()
    assert "files" in AlfworldEnvironment.spec.data_hash


def test_a_real_game_has_the_texts_and_commands_of_the_library(real: Path) -> None:
    info = AlfworldEnvironment.tasks("valid_seen", 0, 1, {"type": TASK_TYPES[3]})[0]
    path = real / "json_2.1.1" / info.task_id.removeprefix("file/") / "game.tw-pddl"
    play_beside_the_library(info.task_id, json.loads(path.read_bytes()))


def test_a_generated_game_plays_in_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))  # the package sets it when it is imported, if it is not set
    importlib.import_module("alfworld")
    monkeypatch.delenv(DATA_VARIABLE)
    play_beside_the_library(THREE, json.loads(game_file(generated_game(THREE, "valid_unseen", 3))))


def play_beside_the_library(task_id: str, game: dict[str, Any]) -> None:
    from alfworld.agents.utils.misc import Demangler
    from textworld import EnvInfos
    from textworld.envs.pddl import PddlEnv

    library = PddlEnv(EnvInfos(admissible_commands=True))
    library.load(game)
    demangler = Demangler(game_infos=library._entity_infos)
    for entity in library._entity_infos.values():
        entity.name = demangler.demangle_alfred_name(entity.id)
    state = library.reset()
    environment, transition = start(task_id, admissible_actions=True)
    assert transition.observation == state.feedback
    for command in ("look", "no such thing", *game["walkthrough"]):
        assert transition.admissible_actions is not None
        assert set(transition.admissible_actions) == {" ".join(text.split()) for text in state["admissible_commands"]}
        state, _, is_done = library.step(command)
        transition = environment.step(command)
        assert transition.observation == state.feedback
        assert transition.is_terminal == is_done
    assert transition.success
    environment.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_oracle_wins_the_real_games(real: Path) -> None:
    won: Counter[str] = Counter()
    num_games = 0
    for split in SPLITS:
        for info in AlfworldEnvironment.tasks(split, 0, 1000, {"source": "file"}):
            num_games += 1
            for expert in ("walkthrough", "handcoded")[: 1 + (num_games % 4 == 0)]:
                environment, _ = start(info.task_id, expert=expert)
                won[expert] += play_oracle(environment)[-1].success
                environment.close()
    assert num_games == 216
    assert won["walkthrough"] >= 0.98 * num_games, won
    assert won["handcoded"] >= 0.95 * num_games / 4, won


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_oracle_wins_generated_games_and_half_of_them_are_long() -> None:
    num_won, num_long, num_games = 0, 0, 64
    for index in range(num_games):
        split, goals = SPLITS[index % 3], 2 + index % 7
        task_id = f"generated/goals={goals}/{split}/{index:06d}"
        environment, _ = start(task_id)
        num_won += play_oracle(environment)[-1].success
        environment.close()
        num_long += floor_of(task_id, split, goals) >= 20
    assert num_won >= 0.98 * num_games
    assert num_long >= num_games / 2


def floor_of(task_id: str, split: str, goals: int) -> int:
    """A number of acts that no plan of the game is shorter than."""
    room, _, plan = draw_task(task_id, split, goals)
    game = generated_game(task_id, split, goals)
    goal = parse_goal(game.domain, game.problem)
    assert goal is not None
    floor = Planner(goal, world_of(room)).floor
    assert floor <= len(plan) == len(game.walkthrough)
    return floor


@pytest.mark.slow
def test_memory_is_flat_over_many_games() -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    environment = AlfworldEnvironment()
    sizes: list[int] = []
    for _ in range(4):
        for index in range(50):
            environment.reset((ONE, TWO, THREE)[index % 3], 0, {})
            environment.step("look")
            if index % 5 == 0:
                environment.close()
        sizes.append(resident_bytes())
    environment.close()
    assert sizes[-1] - sizes[1] < 8 * 2**20, sizes
