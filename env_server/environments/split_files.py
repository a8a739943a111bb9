"""Records of a user's JSON and JSONL files, and which split each belongs to.

A file whose name begins with train, valid, validation, val, dev or test holds that split. Records of other files are
split by digest, 18 : 1 : 1, and so is `train` into 19 : 1 where no file holds `valid`. Records with the same key never
lie in two splits: those of `test` stay, then those of `valid`.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from env_server.environment import EnvironmentBrokenError
from env_server.environments.digests import number_of

_NAMED = re.compile(r"(train|validation|valid|val|dev|test)(?![a-z])", re.IGNORECASE)
_SPLIT_OF_NAME = {"train": "train", "test": "test"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """One record, where it stands, and the split that its file is named after."""

    values: dict[str, Any]
    where: str
    split: str | None


def data_files(setting: str, path_text: str) -> list[Path]:
    """The JSON and JSONL files at a path, which is one of them or a folder of them; `setting` is where it came from."""
    path = Path(path_text).expanduser()
    if not path.exists():
        raise EnvironmentBrokenError(f"{setting} names {path}, which does not exist; set it to a file or folder")
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.suffix in (".json", ".jsonl"))
    if not files:
        raise EnvironmentBrokenError(f"{setting} names {path}, which holds no .json or .jsonl file")
    return files


def read_records(files: Sequence[Path]) -> Iterator[FileRecord]:
    """All records of files that are JSON arrays, or JSON objects a line; raises naming the bad one."""
    for file in files:
        named = _NAMED.match(file.stem)
        split = _SPLIT_OF_NAME.get(named[1].lower(), "valid") if named else None
        for number, values in enumerate(_values(file), start=1):
            where = f"record {number} of {file}"
            if not isinstance(values, dict):
                raise EnvironmentBrokenError(f"{where} is no JSON object; mend or remove it")
            yield FileRecord(values=cast("dict[str, Any]", values), where=where, split=split)


def assign_splits(records: Sequence[tuple[str | None, str]]) -> list[str | None]:
    """The split of each (named split, key); None for a record whose key is in a split of higher rank."""
    has_valid = any(named == "valid" for named, _ in records)
    splits = [named if named in ("valid", "test") else _drawn(named, key, has_valid) for named, key in records]
    in_test = {key for split, (_, key) in zip(splits, records, strict=True) if split == "test"}
    in_valid = {key for split, (_, key) in zip(splits, records, strict=True) if split == "valid"}
    above = {"test": set[str](), "valid": in_test, "train": in_test | in_valid}
    return [None if key in above[split] else split for split, (_, key) in zip(splits, records, strict=True)]


def _drawn(named: str | None, key: str, has_valid: bool) -> str:
    lot = number_of(key) % 20
    if named == "train":
        return "valid" if lot == 0 and not has_valid else "train"
    return {0: "valid", 1: "test"}.get(lot, "train")


def _values(file: Path) -> Iterator[Any]:
    try:
        with file.open(encoding="utf-8") as lines:
            if file.suffix == ".json":
                yield from _array(json.load(lines), file)
                return
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _parsed(line, f"{file}:{number}")
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise EnvironmentBrokenError(f"{file} cannot be read: {error}; mend or remove it") from error


def _array(values: Any, file: Path) -> list[Any]:
    if isinstance(values, list):
        return cast("list[Any]", values)
    raise EnvironmentBrokenError(f"{file} holds no JSON array; give one JSON object a line in a .jsonl file instead")


def _parsed(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise EnvironmentBrokenError(f"{where} is no JSON: {error}; mend or remove the line") from error
