"""Task files, trajectory files and the spool."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from clients.spool import Spool
from longturn.disk import DiskError
from longturn.errors import ConfigError, WireError
from longturn.records import Task, TrajectoryIdentity
from longturn.task_file import TaskEntry, read_tasks, write_tasks
from longturn.trajectory_file import TrajectoryWriter, read_trajectories
from tests.longturn.examples import make_trajectory
from tests.support.full_disk import largest_file


def test_a_task_file_keeps_order_knobs_and_seeds(tmp_path: Path) -> None:
    knobs = {"horizon": 3, "share": 0.5, "is_on": True, "mode": "läuft"}
    entries = (
        TaskEntry(task=Task(environment="e", task_id="b", knobs=knobs), seed=2**64 - 1, kind="k"),
        TaskEntry(task=Task(environment="e", task_id="a")),
    )
    assert write_tasks(tmp_path / "new" / "tasks.jsonl", entries) == 2
    assert read_tasks(tmp_path / "new" / "tasks.jsonl") == entries


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2"),
        ("[]", "must be a JSON object"),
        ('{"environment": "e"}', "task_id must be a string"),
        ('{"environment": "e", "task_id": "t", "sed": 1}', "unknown field 'sed'"),
        ('{"environment": "e", "task_id": "t", "seed": "1"}', "seed must be an integer"),
        ('{"environment": "e", "task_id": "t", "seed": -1}', "seed must lie in"),
        ('{"environment": "e", "task_id": "t", "knobs": {"a": null}}', "knob a"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"environment": "e", "task_id": "t"}\n' + line + "\n")
    with pytest.raises(ConfigError, match="line 2") as error:
        read_tasks(path)
    assert message in str(error.value)


def test_trajectories_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    trajectory = make_trajectory()
    with TrajectoryWriter(path) as writer:
        for _ in range(3):
            writer.write(trajectory)
    assert list(read_trajectories(path)) == [trajectory] * 3


def _write_and_stop(path: Path) -> None:
    with TrajectoryWriter(path) as writer:
        writer.write(make_trajectory())
        raise RuntimeError("stop")


def test_a_broken_recording_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    with TrajectoryWriter(path) as writer:
        writer.write(make_trajectory())
    before = path.read_bytes()
    with pytest.raises(RuntimeError, match="stop"):
        _write_and_stop(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("num_kept", [1, 100, -1])
def test_a_file_that_was_cut_names_the_damaged_record(tmp_path: Path, num_kept: int) -> None:
    path = tmp_path / "t.bin"
    with TrajectoryWriter(path) as writer:
        writer.write(make_trajectory())
        writer.write(make_trajectory())
    data = path.read_bytes()
    whole = len(data) // 2
    path.write_bytes(data[: whole + num_kept] if num_kept > 0 else data[:num_kept])
    with pytest.raises(WireError, match="record 1 is damaged"):
        list(read_trajectories(path))


def test_a_full_disk_is_named_with_its_path_and_loses_nothing_that_was_kept(tmp_path: Path) -> None:
    first, second = [TrajectoryIdentity(run_id="r", group_id="g", member_index=n, attempt=0) for n in range(2)]
    spool = Spool(tmp_path / "spool")
    spool.add(first, b"kept")
    with largest_file(100), pytest.raises(DiskError, match="File too large; raise the limit") as error:
        spool.add(second, b"x" * 1000)
    assert str(tmp_path / "spool") in str(error.value)
    spool.close()
    again = Spool(tmp_path / "spool")
    assert list(again) == [first]
    again.close()


def test_a_spool_without_its_folder_says_so(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    shutil.rmtree(tmp_path / "spool")
    with pytest.raises(DiskError, match="No such file"):
        spool.add(TrajectoryIdentity(run_id="r", group_id="g", member_index=0, attempt=0), b"lost")
    spool.close()
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match="Not a directory"):
        Spool(tmp_path / "file" / "spool")


def test_a_kept_trajectory_that_is_damaged_is_named_with_the_way_out(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.add(TrajectoryIdentity(run_id="r", group_id="g", member_index=0, attempt=0), b"kept")
    spool.close()
    (path,) = tmp_path.glob("*.submission")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(WireError, match="delete it to go on") as error:
        Spool(tmp_path)
    assert str(path) in str(error.value)
