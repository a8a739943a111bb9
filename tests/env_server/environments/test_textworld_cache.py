"""Making and keeping games."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from env_server.environment import EnvironmentBrokenError
from env_server.environments.generated_tasks import split_of_layout
from env_server.environments.textworld import TextWorldEnvironment
from env_server.environments.textworld_cache import (
    CACHE_VARIABLE,
    LOGIC,
    STORY,
    GameCache,
    GameFacts,
    default_cache_root,
)
from env_server.environments.textworld_tasks import TextWorldTask, parse_task_id

TASK = parse_task_id("coin_collector/level=104/train/000000")

FACTS = GameFacts(
    walkthrough=("go north", "take coin"),
    objective="Go north.",
    goal="",
    score_max=1.0,
    layout="north",
    exits={"hall": {"north": "attic"}, "attic": {"south": "hall"}},
    start="hall",
)

CONCURRENT = """
import sys
from pathlib import Path
from env_server.environments.textworld_cache import GameCache
from tests.env_server.environments.test_textworld_cache import TASK, make_slowly
GameCache(Path(sys.argv[1])).obtain(TASK, make_slowly)
"""


def make(task: TextWorldTask, folder: Path) -> GameFacts:
    (folder / STORY).write_bytes(b"story")
    (folder / LOGIC).write_text("{}")
    (folder / "leftover").write_text("of a compiler")
    return FACTS


def make_slowly(task: TextWorldTask, folder: Path) -> GameFacts:
    """Say so, then wait for a line on standard input."""
    sys.stdout.write("making\n")
    sys.stdout.flush()
    sys.stdin.readline()
    return make(task, folder)


def never(task: TextWorldTask, folder: Path) -> GameFacts:
    raise AssertionError("made again")


def test_a_made_game_is_found_with_its_facts(tmp_path: Path) -> None:
    cache = GameCache(tmp_path)
    assert cache.find(TASK) is None
    entry = cache.obtain(TASK, make)
    assert entry.facts == FACTS
    assert entry.story.read_bytes() == b"story"
    assert cache.obtain(TASK, never) == entry == GameCache(tmp_path).find(TASK)
    assert sorted(path.name for path in cache.folder(TASK).iterdir()) == sorted(["facts.json", LOGIC, STORY])
    assert not list(tmp_path.glob("*/making-*"))


@pytest.mark.parametrize("name", [STORY, LOGIC, "facts.json"])
@pytest.mark.parametrize("damage", [b"", b"stor", b'{"sha256": 3}', b"[]", b"\xff\xfe", None])
def test_a_corrupt_entry_is_made_anew(tmp_path: Path, name: str, damage: bytes | None) -> None:
    cache = GameCache(tmp_path)
    cache.obtain(TASK, make)
    path = cache.folder(TASK) / name
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    assert cache.find(TASK) is None
    assert cache.obtain(TASK, make).facts == FACTS
    assert cache.obtain(TASK, never).story.read_bytes() == b"story"


def test_facts_of_another_shape_are_corrupt(tmp_path: Path) -> None:
    cache = GameCache(tmp_path)
    cache.obtain(TASK, make)
    path = cache.folder(TASK) / "facts.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"unknown": 1}))
    assert cache.find(TASK) is None


def test_a_failed_making_leaves_nothing_behind(tmp_path: Path) -> None:
    cache = GameCache(tmp_path)

    def fail(task: TextWorldTask, folder: Path) -> GameFacts:
        make(task, folder)
        raise EnvironmentBrokenError("the compiler fell over")

    with pytest.raises(EnvironmentBrokenError, match="fell over"):
        cache.obtain(TASK, fail)
    assert cache.find(TASK) is None
    assert not list(tmp_path.glob("*/making-*"))
    assert cache.obtain(TASK, make).facts == FACTS


def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path: Path) -> None:
    root = tmp_path / "file"
    root.write_text("not a folder")
    with pytest.raises(EnvironmentBrokenError, match=CACHE_VARIABLE):
        GameCache(root).obtain(TASK, make)


def test_two_processes_make_a_game_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CONCURRENT, str(tmp_path)]
    makers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
        for _ in range(2)
    ]
    for maker in makers:
        assert maker.stdin is not None
        maker.stdin.write("\n")
        maker.stdin.flush()
    output = [maker.communicate(timeout=60)[0] for maker in makers]
    assert [maker.returncode for maker in makers] == [0, 0]
    assert sorted(output) == ["", "making\n"]


def test_the_cache_folder_follows_the_variables() -> None:
    assert default_cache_root({CACHE_VARIABLE: "/games", "XDG_CACHE_HOME": "/xdg"}) == Path("/games")
    assert default_cache_root({"XDG_CACHE_HOME": "/xdg"}) == Path("/xdg/longturn")
    assert default_cache_root({}) == Path.home() / ".cache" / "longturn"


def test_making_a_game_writes_into_the_cache_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    for name in ("cwd", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    TextWorldEnvironment.prepare(TASK.task_id, {}, 0)
    entry = GameCache(tmp_path / "cache").find(TASK)
    assert entry is not None
    assert split_of_layout(entry.facts.layout) == "train"
    assert entry.facts.walkthrough == (*(f"go {step}" for step in entry.facts.layout.split()), "take coin")
    assert list((tmp_path / "cwd").iterdir()) == []
    assert list((tmp_path / "home").iterdir()) == []


@pytest.mark.slow
def test_the_same_task_gives_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    """Also on another day: the compile date is not in the file."""
    task = parse_task_id("cooking/recipe=1,take=1,go=1,open=0,cook=1,cut=1,drop=0/train/000000")
    stories: list[bytes] = []
    for hash_seed in ("1", "2"):
        script = (
            "from env_server.environments.textworld import TextWorldEnvironment as E;"
            f"E.prepare({task.task_id!r}, {{}}, 0)"
        )
        variables = {**os.environ, "PYTHONHASHSEED": hash_seed, CACHE_VARIABLE: str(tmp_path / hash_seed)}
        subprocess.run([sys.executable, "-c", script], env=variables, check=True, timeout=100)
        entry = GameCache(tmp_path / hash_seed).find(task)
        assert entry is not None
        stories.append(entry.story.read_bytes())
    assert stories[0] == stories[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::jericho.UnsupportedGameWarning")  # upstream's way starts an interpreter
@pytest.mark.parametrize(
    "task_id",
    [
        "coin_collector/level=104/train/000001",
        "coin_collector/level=204/test/000001",
        "cooking/recipe=2,take=1,go=6,open=1,cook=1,cut=1,drop=0/test/000001",
        "simple/rewards=dense,goal=brief/test/000001",
        "treasure_hunter/level=11/valid/000001",
    ],
)
def test_fast_generation_gives_upstreams_game(task_id: str, tmp_path: Path) -> None:
    from env_server.environments import textworld_generator as generator

    task = parse_task_id(task_id)
    with generator.fast_generation(tmp_path):
        fast, _ = generator.make_in_split(task)
    slow, _ = generator.make_in_split(task)
    assert json.dumps(fast.serialize()) == json.dumps(slow.serialize())
