"""Records of a user's JSON and JSONL files, and which split each belongs to.

A file whose name begins with train, valid, validation, val, dev or test holds that split. Records of other files are
split by digest, 18 : 1 : 1, and so is `train` into 19 : 1 where no file holds `valid`. Records with the same key never
lie in two splits: those of `test` stay, then those of `valid`.

A record that is no good, or a file, is left out and listed in `quarantined.jsonl` of the prepared data.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from env_server.environment import EnvironmentBrokenError
from env_server.environments.data_store import write_records
from env_server.environments.digests import number_of

logger = logging.getLogger(__name__)

T = TypeVar("T")

_NAMED = re.compile(r"(train|validation|valid|val|dev|test)(?![a-z])", re.IGNORECASE)
_SPLIT_OF_NAME = {"train": "train", "test": "test"}
_LIST = "quarantined"
_SHOWN = 5
_BAD = object()
"""Stands for a line that is in quarantine already, so that the records after it keep their numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """One record, where it stands, and the split that its file is named after."""

    values: dict[str, Any]
    where: str
    split: str | None


class BadRecordError(Exception):
    """A record is no good; the message names it and says what is wrong."""


class Quarantine:
    """Records and files that are left out, each with the reason."""

    def __init__(self) -> None:
        self._reasons: list[str] = []

    @property
    def first(self) -> str:
        """The first reason; empty where nothing was left out."""
        return self._reasons[0] if self._reasons else ""

    def add(self, reason: str) -> None:
        """Leave something out."""
        self._reasons.append(reason)

    def made(self, records: Iterable[FileRecord], make: Callable[[FileRecord], T]) -> list[tuple[FileRecord, T]]:
        """Each record with what `make` makes of it, but for those of which it raises `BadRecordError`."""
        good: list[tuple[FileRecord, T]] = []
        for record in records:
            try:
                good.append((record, make(record)))
            except BadRecordError as error:
                self.add(str(error))
        return good

    def keep(self, folder: Path, *, num_good: int) -> None:
        """List in the folder what was left out; raise `EnvironmentBrokenError` with the first if nothing is good."""
        if not num_good:
            raise EnvironmentBrokenError(self.first or "the data files hold no records; fill them")
        write_records(folder, _LIST, ({"reason": reason} for reason in self._reasons))


def tell_what_is_left_out(folder: Path) -> None:
    """Warn of the records that `Quarantine.keep` listed in a folder of prepared data."""
    path = folder / f"{_LIST}.jsonl"
    reasons = [json.loads(line)["reason"] for line in path.read_text(encoding="utf-8").splitlines()]
    if reasons:
        facts = {"num_records": len(reasons), "first": reasons[:_SHOWN], "list": str(path)}
        logger.warning("records of the data files are left out", extra=facts)


def data_files(setting: str, path_text: str) -> list[Path]:
    """The JSON and JSONL files at a path, which is one of them or a folder of them; `setting` is where it came from."""
    path = Path(path_text).expanduser()
    if not path.exists():
        raise EnvironmentBrokenError(f"{setting} names {path}, which does not exist; set it to a file or folder")
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.suffix in (".json", ".jsonl"))
    if not files:
        raise EnvironmentBrokenError(f"{setting} names {path}, which holds no .json or .jsonl file")
    return files


def read_records(files: Sequence[Path], quarantine: Quarantine) -> Iterator[FileRecord]:
    """The good records of files that are JSON arrays, or JSON objects a line."""
    for file in files:
        named = _NAMED.match(file.stem)
        split = _SPLIT_OF_NAME.get(named[1].lower(), "valid") if named else None
        for number, values in enumerate(_values(file, quarantine), start=1):
            where = f"record {number} of {file}"
            if isinstance(values, dict):
                yield FileRecord(values=cast("dict[str, Any]", values), where=where, split=split)
            elif values is not _BAD:
                quarantine.add(f"{where} is no JSON object; mend or remove it")


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


def _values(file: Path, quarantine: Quarantine) -> Iterator[Any]:
    try:
        with file.open(encoding="utf-8") as lines:
            if file.suffix == ".json":
                yield from _array(json.load(lines), file, quarantine)
                return
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _parsed(line, f"{file}:{number}", quarantine)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        quarantine.add(f"{file} cannot be read: {error}; mend or remove it")


def _array(values: Any, file: Path, quarantine: Quarantine) -> list[Any]:
    if isinstance(values, list):
        return cast("list[Any]", values)
    quarantine.add(f"{file} holds no JSON array; give one JSON object a line in a .jsonl file instead")
    return []


def _parsed(line: str, where: str, quarantine: Quarantine) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        quarantine.add(f"{where} is no JSON: {error}; mend or remove the line")
        return _BAD
