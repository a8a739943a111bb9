"""Data that is made once and shared by processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from env_server.environment import EnvironmentBrokenError
from env_server.environments.data_store import Records, files_key, prepared, write_records
from env_server.environments.textworld_cache import CACHE_VARIABLE

RECORDS = [{"text": "one"}, {"text": "zwei\u2028 \ud800"}, {"text": ""}]


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path))
        yield tmp_path


def test_records_read_back_by_position(tmp_path: Path) -> None:
    digest = write_records(tmp_path, "things", RECORDS)
    records = Records(tmp_path, "things")
    assert len(records) == 3
    assert [records[position]["text"] for position in range(3)] == ["one", "zwei\u2028 ?", ""]
    with pytest.raises(IndexError):
        records[3]
    assert digest == write_records(tmp_path, "again", RECORDS)
    assert digest != write_records(tmp_path, "fewer", RECORDS[:2])


def test_no_records_are_records(tmp_path: Path) -> None:
    write_records(tmp_path, "none", [])
    assert len(Records(tmp_path, "none")) == 0


def test_a_folder_is_made_once_and_made_anew_where_a_file_was_cut_short(cache: Path) -> None:
    calls: list[Path] = []

    def build(folder: Path) -> None:
        calls.append(folder)
        write_records(folder, "things", RECORDS)

    folder = prepared("test", "key", build)
    assert prepared("test", "key", build) == folder
    assert len(calls) == 1
    lines = folder / "things.jsonl"
    lines.write_bytes(lines.read_bytes()[:-1])
    assert prepared("test", "key", build) == folder
    assert len(calls) == 2
    assert len(Records(folder, "things")) == 3
    assert sorted(path.name for path in folder.parent.iterdir()) == ["key", "key.lock"]


def test_a_build_that_fails_leaves_nothing(cache: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise EnvironmentBrokenError("no such luck")

    with pytest.raises(EnvironmentBrokenError, match="no such luck"):
        prepared("test", "key", build)
    assert not (cache / "data" / "test" / "key").exists()


def test_processes_that_come_together_build_once(cache: Path) -> None:
    script = (
        "import sys; from env_server.environments.data_store import prepared\n"
        "def build(folder):\n"
        "    with open(sys.argv[1], 'a') as log: log.write('built\\n')\n"
        "    (folder / 'x').write_text('x' * 100_000)\n"
        "print((prepared('test', 'key', build) / 'x').stat().st_size)"
    )
    log = cache / "log"
    runs = [
        subprocess.Popen([sys.executable, "-c", script, str(log)], stdout=subprocess.PIPE, text=True, env=os.environ)
        for _ in range(4)
    ]
    assert [run.communicate(timeout=60)[0] for run in runs] == ["100000\n"] * 4
    assert log.read_text() == "built\n"


def test_a_cache_that_cannot_be_written_names_its_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(EnvironmentBrokenError, match=f"set {CACHE_VARIABLE}"):
        prepared("test", "key", lambda folder: None)


def test_keys_follow_the_files(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("{}")
    key = files_key([file], 1)
    assert files_key([file], 1) == key
    assert files_key([file], 2) != key
    file.write_text("{ }")
    assert files_key([file], 1) != key
