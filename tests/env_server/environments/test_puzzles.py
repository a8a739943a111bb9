"""What holds for every puzzle environment."""

import asyncio
import hashlib
import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from env_server.environment import KnobError, KnobValue, TaskNotFoundError, Transition
from env_server.environments.bandit import BanditEnvironment
from env_server.environments.countdown import CountdownEnvironment
from env_server.environments.frozen_lake import FrozenLakeEnvironment
from env_server.environments.game_2048 import Game2048Environment
from env_server.environments.generated_tasks import SPLITS, split_of_layout
from env_server.environments.puzzle import MAX_ACTION_CHARS, PuzzleEnvironment
from env_server.environments.rubiks_2x2 import Rubiks2x2Environment
from env_server.environments.sokoban import SokobanEnvironment
from env_server.environments.sudoku import SudokuEnvironment
from tests.env_server.loopback import loopback

PUZZLES: tuple[type[PuzzleEnvironment], ...] = (
    SokobanEnvironment,
    FrozenLakeEnvironment,
    BanditEnvironment,
    SudokuEnvironment,
    Game2048Environment,
    Rubiks2x2Environment,
    CountdownEnvironment,
)
GOLDEN = Path(__file__).parents[2] / "golden" / "puzzle_tasks.json"
QUICK: Mapping[str, Mapping[str, str]] = {"game_2048": {"goal": "32"}}
"""Filters for tests that play whole episodes, where the default kind is long."""
NOOPS = ("wait", "look", "I am thinking about it.")
BAD_ACTIONS = (
    "",
    " \n",
    "\0",
    "up\0",
    "\ud800",
    "【up】",
    "ｕｐ",
    "up up",
    "1 2",
    "1 2 3 4",
    "9 9 99",
    "pull",
    "choose \ud800",
    "U2",
    "__import__('os')",
    "9**9**9",
    "(" * 300,
    "up," * 100,
    "x" * 2**20,
    "٣ ٣ ٣",
)

each_puzzle = pytest.mark.parametrize("puzzle", PUZZLES, ids=lambda puzzle: puzzle.spec.name)
Policy = Callable[[PuzzleEnvironment, Transition], str | None]


def expert(environment: PuzzleEnvironment, transition: Transition) -> str | None:
    return environment.oracle()


def listed(puzzle: type[PuzzleEnvironment], split: str = "train", count: int = 1, start: int = 0) -> list[str]:
    filters = QUICK.get(puzzle.spec.name, {})
    return [info.task_id for info in puzzle.tasks(split, start, count, filters)]


def play(
    environment: PuzzleEnvironment,
    task_id: str,
    policy: Policy,
    *,
    seed: int = 0,
    knobs: Mapping[str, KnobValue] | None = None,
) -> list[Transition]:
    """The transitions of an episode, up to its end, the turn limit, or where the policy has no action."""
    transitions = [environment.reset(task_id, seed, knobs or {})]
    while not transitions[-1].is_terminal and len(transitions) <= environment.spec.max_turns:
        action = policy(environment, transitions[-1])
        if action is None:
            break
        transitions.append(environment.step(action))
    return transitions


def wanderer(seed: int) -> Policy:
    """Valid actions at random; where they are not listed, the expert's or nonsense."""
    draw = random.Random(seed)

    def act(environment: PuzzleEnvironment, transition: Transition) -> str | None:
        if transition.admissible_actions is None:
            return draw.choice((environment.oracle() or "", "1 + 1", "nonsense"))
        return draw.choice(transition.admissible_actions) if transition.admissible_actions else None

    return act


def knobs_of(puzzle: type[PuzzleEnvironment]) -> dict[str, KnobValue]:
    has_listing = any(knob.name == "admissible_actions" for knob in puzzle.spec.knobs)
    return {"admissible_actions": True} if has_listing else {}


@each_puzzle
def test_the_oracle_wins_in_every_split(puzzle: type[PuzzleEnvironment]) -> None:
    for split in SPLITS:
        for task_id in listed(puzzle, split, count=3, start=7):
            transitions = play(puzzle(), task_id, expert, seed=3)
            assert transitions[-1].success, task_id
            assert transitions[-1].is_terminal
            assert all(transition.action_valid for transition in transitions)
            assert not any(transition.success for transition in transitions[:-1])
            if puzzle.spec.has_progress:
                assert transitions[-1].progress == 1.0


@each_puzzle
def test_rewards_add_up_to_the_score_and_only_a_win_has_all_of_it(puzzle: type[PuzzleEnvironment]) -> None:
    policies = [expert, *(wanderer(number) for number in range(4))]
    for number, policy in enumerate(policies):
        [task_id] = listed(puzzle, start=number)
        transitions = play(puzzle(), task_id, policy, knobs=knobs_of(puzzle))
        assert transitions[0].reward == transitions[0].score == 0.0
        assert math.isclose(sum(transition.reward for transition in transitions), transitions[-1].score, abs_tol=1e-9)
        for transition in transitions:
            assert 0.0 <= transition.score <= 1.0
            assert transition.success == (transition.score == 1.0)
            assert (transition.progress is not None) == puzzle.spec.has_progress


@each_puzzle
def test_doing_nothing_never_wins_and_never_ends(puzzle: type[PuzzleEnvironment]) -> None:
    actions = itertools.cycle(NOOPS)
    transitions = play(puzzle(), listed(puzzle)[0], lambda environment, transition: next(actions))
    assert len(transitions) == puzzle.spec.max_turns + 1
    assert not any(transition.action_valid for transition in transitions[1:])
    assert transitions[-1].score == 0.0
    assert len({transition.state_hash for transition in transitions}) == 1


@each_puzzle
def test_a_bad_action_is_a_step_that_changes_nothing(puzzle: type[PuzzleEnvironment]) -> None:
    environment = puzzle()
    first = environment.reset(listed(puzzle)[0], 0, {})
    expected = environment.oracle()
    for action in BAD_ACTIONS:
        transition = environment.step(action)
        outcome = (transition.action_valid, transition.reward, transition.is_terminal, transition.state_hash)
        assert outcome == (False, 0.0, False, first.state_hash), ascii(action[:40])
        assert len(transition.observation.encode()) <= len(first.observation.encode()) + MAX_ACTION_CHARS
    assert environment.oracle() == expected


@each_puzzle
def test_listed_actions_are_valid_and_come_only_when_asked_for(puzzle: type[PuzzleEnvironment]) -> None:
    [task_id] = listed(puzzle, start=2)
    assert puzzle().reset(task_id, 0, {}).admissible_actions is None
    if not knobs_of(puzzle):
        return
    draw = random.Random(1)
    environment = puzzle()
    transition = environment.reset(task_id, 0, {"admissible_actions": True})
    for _ in range(50):
        if transition.is_terminal:
            assert transition.admissible_actions == ()
            break
        assert transition.admissible_actions
        transition = environment.step(draw.choice(transition.admissible_actions))
        assert transition.action_valid


@each_puzzle
def test_an_episode_is_the_same_again_beside_others_and_leaves_the_shared_random_numbers_alone(
    puzzle: type[PuzzleEnvironment],
) -> None:
    [task_id] = listed(puzzle, start=5)
    knobs = knobs_of(puzzle)
    alone = play(puzzle(), task_id, wanderer(8), seed=4, knobs=knobs)
    random.seed(0)
    state = random.getstate()
    environment, others = puzzle(), [puzzle() for _ in range(8)]
    crowd = [
        _played(other, other_id, wanderer(number), knobs)
        for number, (other, other_id) in enumerate(zip(others, listed(puzzle, count=8), strict=True))
    ]
    again: list[Transition] = []
    for transition in _played(environment, task_id, wanderer(8), knobs, seed=4):
        again.append(transition)
        for other in crowd:
            next(other, None)
    assert again == alone
    assert random.getstate() == state


def _played(
    environment: PuzzleEnvironment, task_id: str, policy: Policy, knobs: Mapping[str, KnobValue], *, seed: int = 0
) -> Iterator[Transition]:  # fmt: skip
    transition = environment.reset(task_id, seed, knobs)
    yield transition
    for _ in range(environment.spec.max_turns):
        action = None if transition.is_terminal else policy(environment, transition)
        if action is None:
            return
        transition = environment.step(action)
        yield transition


@pytest.mark.parametrize("puzzle", [FrozenLakeEnvironment, BanditEnvironment, Game2048Environment])
def test_the_seed_fixes_what_the_task_leaves_to_chance(puzzle: type[PuzzleEnvironment]) -> None:
    [task_id] = listed(puzzle)
    episodes = [[t.observation for t in play(puzzle(), task_id, expert, seed=seed)] for seed in (0, 0, 1)]
    assert episodes[0] == episodes[1] != episodes[2]
    assert episodes[0][0] == episodes[2][0]


@each_puzzle
def test_every_listed_kind_has_tasks_and_the_default_comes_first(puzzle: type[PuzzleEnvironment]) -> None:
    defaults = {knob.name: knob.default for knob in puzzle.generator.parameters}
    assert puzzle.tasks("valid", 0, 1)[0].knobs == defaults
    num_kinds, rest = divmod(puzzle.num_tasks("valid"), 10_000)
    assert rest == 0
    for number in range(num_kinds):
        split, per_kind = (("train", 100_000), ("valid", 10_000), ("test", 10_000))[number % 3]
        [info] = puzzle.tasks(split, (number + 1) * per_kind - 1, 1)
        assert info == puzzle.task(info.task_id)
        assert puzzle().reset(info.task_id, 0, {}).observation
    assert puzzle.tasks("valid", num_kinds * 10_000, 5) == []


@each_puzzle
def test_the_ends_of_every_range_have_tasks_in_every_split(puzzle: type[PuzzleEnvironment]) -> None:
    defaults = {spec.name: spec.default for spec in puzzle.generator.parameters}
    for spec in puzzle.generator.parameters:
        for value in spec.choices or (spec.validate(spec.minimum or 0), spec.validate(spec.maximum or 0)):
            values = defaults | {spec.name: value}
            for split in SPLITS:
                infos = puzzle.tasks(split, 0, 1, {name: str(given) for name, given in values.items()})
                assert bool(infos) != bool(puzzle.generator.mismatch(values))
                for info in infos:
                    assert puzzle().reset(info.task_id, 0, {}).observation


@each_puzzle
def test_first_observations_of_different_splits_are_disjoint(puzzle: type[PuzzleEnvironment]) -> None:
    filters = {"rubiks_2x2": {"depth": "2"}, "sudoku": {"size": "4"}, "frozen_lake": {"size": "4"}}
    shown = {
        split: {
            puzzle().reset(info.task_id, 0, {}).observation
            for info in puzzle.tasks(split, 0, 60, filters.get(puzzle.spec.name, {}))
        }
        for split in SPLITS
    }
    assert all(shown.values())
    for one, other in itertools.combinations(SPLITS, 2):
        assert not shown[one] & shown[other]


def test_a_draw_gives_a_layout_of_its_own_split() -> None:
    for info in (*SokobanEnvironment.tasks("valid", 0, 30), *SokobanEnvironment.tasks("test", 0, 30)):
        task = SokobanEnvironment.generator.task(info.task_id)
        number = task.draw(lambda rng: rng.randrange(100), layout=str)
        assert split_of_layout(str(number)) == task.split


@each_puzzle
@pytest.mark.parametrize(
    "change",
    [
        lambda task_id: task_id.replace("/train/", "/trian/"),
        lambda task_id: task_id[:-1],
        lambda task_id: task_id.replace("/train/000000", "/test/012345"),
        lambda task_id: task_id.replace("=", "=0", 1),
        lambda task_id: task_id + "/more",
        lambda task_id: task_id.replace("000000", "00000٣"),
        lambda task_id: "x" + task_id,
        lambda task_id: task_id.partition("/")[0],
        lambda task_id: "",
        lambda task_id: "\ud800/\0",
    ],
)
def test_a_wrong_task_id_is_answered_with_the_nearest_valid_one(
    puzzle: type[PuzzleEnvironment], change: Callable[[str], str]
) -> None:
    task_id = puzzle.tasks("train", 0, 1)[0].task_id
    for look_up in (puzzle.task, lambda wrong: puzzle().reset(wrong, 0, {})):
        with pytest.raises(TaskNotFoundError) as caught:
            look_up(change(task_id))
        assert caught.value.nearest is not None
        assert puzzle.task(caught.value.nearest).task_id == caught.value.nearest


@each_puzzle
def test_filters_and_knobs_are_checked_and_a_task_fixes_its_own(puzzle: type[PuzzleEnvironment]) -> None:
    first = puzzle.generator.parameters[0]
    [info] = puzzle.tasks("train", 0, 1, {first.name: str(first.default)})
    assert puzzle().reset(info.task_id, 0, dict(info.knobs)).observation
    other = next(value for value in puzzle.generator.listed[first.name] if value != first.default)
    with pytest.raises(KnobError, match=f"fixes knob {first.name}"):
        puzzle().reset(info.task_id, 0, {first.name: other})
    with pytest.raises(KnobError, match=first.name):
        puzzle.num_tasks("train", {first.name[:-1] + "x": "1"})
    with pytest.raises(KnobError, match=first.name):
        puzzle.tasks("train", 0, 1, {first.name: "1000000"})
    with pytest.raises(KnobError, match="train, valid, test"):
        puzzle.tasks("dev")


@each_puzzle
def test_a_reset_starts_afresh_and_a_closed_instance_needs_one(puzzle: type[PuzzleEnvironment]) -> None:
    environment = puzzle()
    one, other = listed(puzzle, count=2)
    first = environment.reset(one, 0, {})
    environment.step(environment.oracle() or "")
    environment.reset(other, 0, {})
    assert environment.reset(one, 0, {}) == first
    environment.close()
    environment.close()
    assert environment.oracle() is None
    with pytest.raises(RuntimeError, match="before reset"):
        environment.step("up")


def test_tasks_are_those_of_their_version() -> None:
    """Another digest under the same version breaks runs that pinned it: raise the generator's version instead."""
    assert task_digests() == json.loads(GOLDEN.read_text())


def test_the_server_plays_them_all() -> None:
    async def main() -> None:
        async with loopback(*(puzzle.spec.name for puzzle in PUZZLES)) as client:
            for puzzle in PUZZLES:
                name = puzzle.spec.name
                player = await client.start(name, task_id=listed(puzzle)[0], with_oracle=True, with_progress=True)
                result = player.first
                while result.oracle_action:
                    result = await player.step(result.oracle_action)
                assert result.success, name

    asyncio.run(main())


def task_digests() -> dict[str, str]:
    """Of each generator the digest of some first observations."""
    digests: dict[str, str] = {}
    for puzzle in PUZZLES:
        shown = [
            puzzle().reset(info.task_id, 0, {}).observation for split in SPLITS for info in puzzle.tasks(split, 100, 4)
        ]
        digests[puzzle.spec.data_hash] = hashlib.blake2b("\n".join(shown).encode(), digest_size=16).hexdigest()
    return digests


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(task_digests(), indent=2) + "\n")
