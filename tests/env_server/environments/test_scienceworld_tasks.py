"""ScienceWorld's lists of tasks, which need no simulator."""

from __future__ import annotations

import pytest

from env_server.environment import KnobError, TaskNotFoundError
from env_server.environments.scienceworld import ScienceWorldEnvironment
from env_server.environments.scienceworld_tasks import SPLITS, TASKS


def test_there_are_7207_variations_of_thirty_tasks() -> None:
    assert len(TASKS) == 30
    assert [ScienceWorldEnvironment.num_tasks(split) for split in SPLITS] == [3592, 1796, 1819]


@pytest.mark.parametrize(
    ("level", "split", "number"),
    [("L0", "train", 3322), ("L0", "dev", 1661), ("L1", "test", 1684), ("L2", "train", 2242), ("L2", "test", 549)],
)
def test_levels_have_the_published_numbers_of_variations(level: str, split: str, number: int) -> None:
    assert ScienceWorldEnvironment.num_tasks(split, {"level": level}) == number


def test_no_variation_of_a_held_out_task_is_trained_on() -> None:
    trained, tested = (
        {task.kind for task in ScienceWorldEnvironment.tasks(split, 0, 5000, {"level": "L2"})}
        for split in ("train", "test")
    )
    assert (len(trained), len(tested)) == (19, 10)
    assert not trained & tested


def test_every_listed_id_is_found_again_in_its_split() -> None:
    seen: set[str] = set()
    for split in SPLITS:
        for task in ScienceWorldEnvironment.tasks(split, 0, 5000):
            assert ScienceWorldEnvironment.task(task.task_id) == task
            assert task.split == split
            seen.add(task.task_id)
    assert len(seen) == 7207


def test_a_list_goes_round_the_tasks() -> None:
    assert [task.kind for task in ScienceWorldEnvironment.tasks("dev", 0, 30)] == list(TASKS)
    assert ScienceWorldEnvironment.tasks("test", 10_000, 5) == []


@pytest.mark.parametrize(
    ("filters", "split", "message"),
    [
        ({"task": "boyl"}, "train", "did you mean 'boil'"),
        ({"level": "L3"}, "train", "L0, L1, L2"),
        ({"level": "L0"}, "test", "train and dev"),
        ({"topic": "heat"}, "train", "filters: level, task"),
        ({}, "valid", "train, dev, test"),
    ],
)
def test_a_wrong_filter_is_refused_with_what_there_is(filters: dict[str, str], split: str, message: str) -> None:
    with pytest.raises(KnobError, match=message):
        ScienceWorldEnvironment.num_tasks(split, filters)


@pytest.mark.parametrize(
    ("task_id", "nearest"),
    [
        ("boil", "boil/0"),
        ("boil/007", "boil/7"),
        ("boil/30", "boil/0"),
        ("find-plants/3", "find-plant/3"),
        ("", "boil/0"),
    ],
)
def test_a_wrong_id_is_answered_with_the_nearest_one(task_id: str, nearest: str) -> None:
    with pytest.raises(TaskNotFoundError) as caught:
        ScienceWorldEnvironment.task(task_id)
    assert caught.value.nearest == nearest
