"""Files appear whole or not at all, and what cannot be read or written is named."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from longturn.disk import DiskError, DiskFullError, naming, read_json, whole_file, write_json, write_whole, writing_to
from longturn.errors import ConfigError
from longturn.ready import write_ready
from longturn.records import Task
from longturn.run_folder import held_folder
from longturn.task_file import TaskEntry, write_tasks
from longturn.trajectory_file import TrajectoryWriter
from tests.longturn.examples import make_trajectory
from tests.support.full_disk import largest_file


def test_a_file_is_replaced_whole_and_its_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    for text in ("a longer text", "läuft"):
        write_whole(path, text)
    assert path.read_text(encoding="utf-8") == "läuft"
    assert list(path.parent.iterdir()) == [path]


def test_on_a_full_disk_the_old_file_stays_and_the_new_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_whole(path, "old")
    with (
        largest_file(100),
        pytest.raises(DiskError, match=re.escape(f"{path}: File too large; raise the limit")),
    ):
        write_whole(path, "x" * 1000)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_whole(path, "old")

    def break_off() -> None:
        with whole_file(path) as file:
            file.write(b"new")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        break_off()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def _write_trajectory(path: Path) -> None:
    with TrajectoryWriter(path) as writer:
        writer.write(make_trajectory())


def _hold(path: Path) -> None:
    with held_folder(path, "lock", refusal="held"):
        pass


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_ready(path, {}),
        lambda path: write_tasks(path, [TaskEntry(task=Task(environment="e", task_id="t"))]),
        _write_trajectory,
        _hold,
    ],
)
def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path, write: Callable[[Path], object]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match=re.escape(str(tmp_path / "file"))):
        write(tmp_path / "file" / "below")


def test_a_device_without_room_says_what_mends_it() -> None:
    with pytest.raises(DiskError, match="free space"), naming(Path("/dev/full")), Path("/dev/full").open("w") as file:
        file.write("x")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_no_room_is_a_full_disk(number: int) -> None:
    for error in (OSError(number, "no"), ValueError(f"I/O error: no (os error {number})")):
        with pytest.raises(DiskFullError) as caught, writing_to(Path("file"), ValueError):
            raise error
        assert caught.value.reason == "DISK_FULL"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.EROFS, errno.ENOTDIR])
@pytest.mark.parametrize("guard", [naming, writing_to])
def test_what_is_no_want_of_room_is_not_called_a_full_disk(
    number: int, guard: Callable[[Path], AbstractContextManager[None]]
) -> None:
    with pytest.raises(DiskError) as caught, guard(Path("file")):
        raise OSError(number, "no")
    assert caught.value.reason == "FILE_ERROR"


def test_json_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_json(tmp_path / "file.json", {"a": [1, "läuft"]})
    assert read_json(tmp_path / "file.json", mend="") == {"a": [1, "läuft"]}


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]", b"[" * 100_000])
def test_damaged_json_is_named_with_the_way_out(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"file\.json is damaged .*; remove it$"):
        read_json(path, mend="remove it")


def test_json_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match=r"file\.json: No such file"):
        read_json(tmp_path / "file.json", mend="")
