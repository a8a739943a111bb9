"""Splits of a user's records."""

import re
from pathlib import Path

import pytest

from env_server.environment import EnvironmentBrokenError
from env_server.environments.split_files import (
    Quarantine,
    assign_splits,
    data_files,
    read_records,
    tell_what_is_left_out,
)


def test_file_names_say_the_split(tmp_path: Path) -> None:
    names = ("train_1.jsonl", "dev.json", "Test-small.jsonl", "validation.jsonl", "training.jsonl", "all.jsonl")
    for name in names:
        (tmp_path / name).write_text('[{"a": 1}]' if name.endswith(".json") else '{"a": 1}\n\n{"a": 2}\n')
    (tmp_path / "notes.txt").write_text("not data")
    records = list(read_records(data_files("SETTING", str(tmp_path)), Quarantine()))
    splits = {Path(record.where.split(" of ")[1]).name: record.split for record in records}
    assert splits == {
        "train_1.jsonl": "train",
        "dev.json": "valid",
        "Test-small.jsonl": "test",
        "validation.jsonl": "valid",
        "training.jsonl": None,
        "all.jsonl": None,
    }
    assert len(records) == 11


def test_a_key_lies_in_one_split_only() -> None:
    named = [
        ("train", "a"),
        ("train", "b"),
        ("test", "b"),
        ("valid", "c"),
        ("train", "c"),
        ("test", "c"),
        ("train", "a"),
    ]
    assert assign_splits(named) == ["train", None, "test", None, None, "test", "train"]


def test_records_without_a_split_are_dealt_by_their_key() -> None:
    records = [(None, f"question {number}") for number in range(2000)]
    splits = assign_splits(records)
    assert splits == assign_splits(records)
    assert 1700 < splits.count("train") < 1900
    assert splits.count("valid") > 50
    assert splits.count("test") > 50
    assert assign_splits([(None, "question 7"), (None, "question 7")])[0] == splits[7]


def test_a_train_file_alone_gives_some_for_validation_and_none_for_test() -> None:
    splits = assign_splits([("train", f"question {number}") for number in range(2000)])
    assert 50 < splits.count("valid") < 150
    assert splits.count("test") == 0
    assert "valid" not in assign_splits([("train", "a"), ("train", "b"), ("test", "c")] * 1 + [("valid", "d")])[:3]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.jsonl", '{"a": 1}\n{"a": ', "train.jsonl:2 is no JSON"),
        ("train.jsonl", "[1]\n", "record 1 of .*train.jsonl is no JSON object"),
        ("train.json", '{"a": 1}', "holds no JSON array"),
        ("train.json", "[", "train.json cannot be read"),
    ],
)
def test_what_cannot_be_read_is_left_out_and_listed(
    tmp_path: Path, name: str, content: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / name).write_text(content)
    (tmp_path / "valid.jsonl").write_text('{"b": 2}\n')
    quarantine = Quarantine()
    records = list(read_records(data_files("SETTING", str(tmp_path)), quarantine))
    assert records[-1].values == {"b": 2}
    assert re.search(message, quarantine.first)
    folder = tmp_path / "prepared"
    folder.mkdir()
    quarantine.keep(folder, num_good=len(records))
    tell_what_is_left_out(folder)
    assert quarantine.first in (folder / "quarantined.jsonl").read_text()
    (told,) = caplog.records
    assert told.message == "records of the data files are left out"
    with pytest.raises(EnvironmentBrokenError, match=message):
        quarantine.keep(folder, num_good=0)


def test_a_folder_without_data_files_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("")
    with pytest.raises(EnvironmentBrokenError, match=r"holds no \.json or \.jsonl file"):
        data_files("SETTING", str(tmp_path))


def test_a_path_that_is_not_there_names_its_setting(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentBrokenError, match=r"SETTING names .*absent, which does not exist"):
        data_files("SETTING", str(tmp_path / "absent"))
