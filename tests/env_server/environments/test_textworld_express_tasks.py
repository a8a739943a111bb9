"""TextWorldExpress's lists of games, which need no simulator."""

from __future__ import annotations

import pytest

from env_server.environment import KnobError, TaskNotFoundError
from env_server.environments.textworld_express import TextWorldExpressEnvironment
from env_server.environments.textworld_express_tasks import GAMES, SPLITS, find

COIN = "coin/locations=11,distractors=0,doors=true,limit=true"


def test_every_game_has_a_thousand_tasks_in_every_split() -> None:
    for split in SPLITS:
        assert TextWorldExpressEnvironment.num_tasks(split) == 1000 * len(GAMES)
        listed = TextWorldExpressEnvironment.tasks(split, 7990, 100)
        assert [task.task_id.rpartition("/")[2] for task in listed] == ["000998"] * 2 + ["000999"] * 8


def test_the_seeds_of_the_splits_are_the_package_s_own() -> None:
    assert [find(f"{COIN}/{split}/000003").seed for split in SPLITS] == [3, 10_003, 20_003]
    parameters = "numLocations=11,numDistractorItems=0,includeDoors=1,limitInventorySize=1"
    assert find(f"{COIN}/train/000000").package_parameters == parameters


def test_filters_choose_games_and_set_parameters() -> None:
    (task,) = TextWorldExpressEnvironment.tasks("dev", 5, 1, {"game": "coin", "locations": "4"})
    assert task.task_id == "coin/locations=4,distractors=0,doors=true,limit=true/dev/000005"
    kinds = {task.kind for task in TextWorldExpressEnvironment.tasks("dev", 0, 20, {"distractors": "2"})}
    assert kinds == {"cookingworld", "coin"}


@pytest.mark.parametrize(
    ("filters", "split", "message"),
    [
        ({"game": "coins"}, "train", "did you mean 'coin'"),
        ({"locations": "99", "game": "coin"}, "train", r"in \[1, 11\]"),
        ({"length": "5", "locations": "5"}, "train", "no game has all of"),
        ({}, "valid", "train, dev, test"),
    ],
)
def test_a_wrong_filter_is_refused_with_what_there_is(filters: dict[str, str], split: str, message: str) -> None:
    with pytest.raises(KnobError, match=message):
        TextWorldExpressEnvironment.num_tasks(split, filters)


@pytest.mark.parametrize(
    ("task_id", "nearest"),
    [
        ("", f"{COIN}/train/000000"),
        ("coin/train/000001", f"{COIN}/train/000001"),
        (f"{COIN}/valid/000001", f"{COIN}/train/000001"),
        (f"{COIN}/test/001000", f"{COIN}/test/000000"),
        (f"{COIN}/test/1", f"{COIN}/test/000001"),
        (f"{COIN},seed=3/test/000001", f"{COIN}/test/000001"),
        ("sort/dev/000002", "sorting/dev/000002"),
        ("coin/locations=12,distractors=0,doors=true,limit=true/dev/000002", f"{COIN}/dev/000002"),
    ],
)
def test_a_wrong_id_is_answered_with_the_nearest_one(task_id: str, nearest: str) -> None:
    with pytest.raises(TaskNotFoundError) as caught:
        TextWorldExpressEnvironment.task(task_id)
    assert caught.value.nearest == nearest


def test_every_listed_id_is_found_again() -> None:
    for split in SPLITS:
        for task in TextWorldExpressEnvironment.tasks(split, 0, 500):
            assert TextWorldExpressEnvironment.task(task.task_id) == task
