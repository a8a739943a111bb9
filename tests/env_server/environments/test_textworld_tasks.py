"""Task ids, listing and splits; no game is made."""

import itertools

import pytest

from env_server.environment import KnobError, TaskNotFoundError
from env_server.environments.generated_tasks import split_of_layout
from env_server.environments.textworld import TextWorldEnvironment
from env_server.environments.textworld_layouts import layout_key
from env_server.environments.textworld_tasks import (
    FAMILIES,
    NUM_TASKS_PER_KIND,
    SPLITS,
    TextWorldTask,
    parse_task_id,
)

SHORTEST_SPLIT_LEVELS = (4, 104, 204)


@pytest.mark.parametrize(
    "task_id",
    [
        "coin_collector/level=116/train/000123",
        "coin_collector/level=201/valid/009999",
        "treasure_hunter/level=30/test/000000",
        "cooking/recipe=3,take=2,go=12,open=1,cook=0,cut=1,drop=0/test/000007",
        "simple/rewards=sparse,goal=none/train/099999",
        "quest/length=37,rooms=5/valid/000001",
    ],
)
def test_a_task_id_reads_back_as_itself(task_id: str) -> None:
    assert parse_task_id(task_id).task_id == task_id
    assert TextWorldEnvironment.task(task_id).task_id == task_id


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("coin_colector/level=116/train/000123", "coin_collector/level=116/train/000000"),
        ("coin_collector/level=116/trian/000123", "coin_collector/level=116/train/000123"),
        ("coin_collector/level=116/train/123", "coin_collector/level=116/train/000123"),
        ("coin_collector/level=116/test/012345", "coin_collector/level=116/test/000000"),
        ("coin_collector/level=160/train/000001", "coin_collector/level=116/train/000001"),
        ("coin_collector/level=0116/train/000001", "coin_collector/level=116/train/000001"),
        ("cooking/recipe=1,take=2,go=1,open=1,cook=1,cut=1,drop=1/train/000001", None),
        ("", "coin_collector/level=116/train/000000"),
        ("quest/length=2", "quest/length=2,rooms=10/train/000000"),
        ("coin_collector/level=116/train/٣", "coin_collector/level=116/train/000000"),
        ("coin_collector/level=116/train/000001/more", "coin_collector/level=116/train/000001"),
    ],
)
def test_a_wrong_task_id_is_answered_with_the_nearest_valid_one(wrong: str, nearest: str | None) -> None:
    with pytest.raises(TaskNotFoundError) as caught:
        parse_task_id(wrong)
    assert caught.value.nearest is not None
    assert parse_task_id(caught.value.nearest)
    assert nearest in (None, caught.value.nearest)


def test_listing_pages_through_all_kinds_in_a_fixed_order() -> None:
    filters = {"family": "coin_collector"}
    per_kind = NUM_TASKS_PER_KIND["valid"]
    assert TextWorldEnvironment.num_tasks("valid", filters) == 183 * per_kind
    page = TextWorldEnvironment.tasks("valid", per_kind - 2, 4, filters)
    assert [task.task_id for task in page] == [
        "coin_collector/level=1/valid/009998",
        "coin_collector/level=1/valid/009999",
        "coin_collector/level=2/valid/000000",
        "coin_collector/level=2/valid/000001",
    ]
    assert TextWorldEnvironment.tasks("valid", 183 * per_kind, 4, filters) == []
    assert len(TextWorldEnvironment.tasks("train", 0, 7)) == 7


def test_filters_pick_kinds_and_name_their_range() -> None:
    [first] = TextWorldEnvironment.tasks("test", 0, 1, {"level": "116", "family": "coin_collector"})
    assert first.task_id == "coin_collector/level=116/test/000000"
    assert first.kind == "coin_collector/116"
    assert first.score_max == 1.0
    assert TextWorldEnvironment.tasks("train", 0, 1, {"length": "37"})[0].kind == "quest/length=37,rooms=6"
    with pytest.raises(KnobError, match=r"\[1, 233\]"):
        TextWorldEnvironment.tasks("test", 0, 1, {"level": "1000", "family": "coin_collector"})
    with pytest.raises(KnobError, match="coin_collector"):
        TextWorldEnvironment.num_tasks("test", {"family": "coin_colector"})
    with pytest.raises(KnobError, match="lenght"):
        TextWorldEnvironment.num_tasks("test", {"lenght": "4"})
    with pytest.raises(KnobError, match="train, valid, test"):
        TextWorldEnvironment.tasks("dev", 0, 1)


def test_listed_ids_are_valid_ids() -> None:
    for name in FAMILIES:
        total = TextWorldEnvironment.num_tasks("train", {"family": name})
        for start in range(0, total, max(1, total // 7)):
            [task] = TextWorldEnvironment.tasks("train", start, 1, {"family": name})
            assert TextWorldEnvironment.task(task.task_id) == task


def test_no_two_tasks_share_a_seed() -> None:
    tasks = [
        parse_task_id(task.task_id)
        for split in SPLITS
        for task in TextWorldEnvironment.tasks(split, 0, 2000, {"family": "coin_collector", "level": "116"})
    ]
    seeds = [tuple(task.seeds(0).values()) for task in tasks]
    assert len(set(seeds)) == len(seeds) == 6000


@pytest.mark.parametrize(
    "parameters",
    ["coin_collector/level=116", "coin_collector/level=108", "coin_collector/level=6", "treasure_hunter/level=3",
     "treasure_hunter/level=12", "quest/length=20,rooms=6"],
)  # fmt: skip
def test_layouts_of_different_splits_are_disjoint(parameters: str) -> None:
    layouts = {
        split: {_accepted_layout(f"{parameters}/{split}/{index:06d}") for index in range(25)} for split in SPLITS
    }
    for one, other in itertools.combinations(SPLITS, 2):
        assert not layouts[one] & layouts[other]
    assert all(layouts.values())


@pytest.mark.parametrize("level", SHORTEST_SPLIT_LEVELS)
def test_even_the_shortest_chains_that_are_split_have_maps_for_every_split(level: int) -> None:
    for split in SPLITS:
        assert _accepted_layout(f"coin_collector/level={level}/{split}/000000")


def _accepted_layout(task_id: str) -> str:
    task = parse_task_id(task_id)
    layouts = (_layout(task, attempt) for attempt in range(200))
    return next(layout for layout in layouts if split_of_layout(layout) == task.split)


def _layout(task: TextWorldTask, attempt: int) -> str:
    return layout_key(task.family.name, task.parameters, task.seeds(attempt))
