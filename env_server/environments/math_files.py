"""Problems from files in the form of GSM8K (`question`, `answer` ending in `#### 18`) or MetaMathQA (`query`,
`response` ending in `The answer is: 18`), read once into the data cache."""

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from env_server.environments.data_store import Records, files_key, prepared, write_records
from env_server.environments.math_answers import final_answer, has_mark
from env_server.environments.split_files import (
    BadRecordError,
    FileRecord,
    Quarantine,
    assign_splits,
    data_files,
    read_records,
    tell_what_is_left_out,
)
from env_server.environments.task_table import SPLITS
from env_server.environments.word_problems import MathProblem

READER_VERSION = 2
"""Rises whenever the same files may give other problems."""

_QUESTIONS = ("query", "question", "problem")
_SOLUTIONS = ("response", "answer", "solution")
_LONGEST_BARE_ANSWER = 100


class MathFiles:
    """The problems of a folder that `read_files` has prepared."""

    def __init__(self, folder: Path) -> None:
        facts = json.loads((folder / "facts.json").read_bytes())
        self.data_hash: str = facts["data_hash"]
        self._records = {split: Records(folder, split) for split in SPLITS}
        self.sizes = {split: len(records) for split, records in self._records.items()}

    def problem(self, split: str, index: int) -> MathProblem:
        """The problem at an index of a split."""
        return MathProblem(**self._records[split][index])


@lru_cache(maxsize=4)
def read_files(setting: str, path_text: str) -> MathFiles:
    """The problems at a path, once per process. Raises `EnvironmentBrokenError` where there is none."""
    files = data_files(setting, path_text)
    folder = prepared("math", files_key(files, READER_VERSION), lambda folder: _prepare(files, folder))
    tell_what_is_left_out(folder)
    return MathFiles(folder)


def _prepare(files: list[Path], folder: Path) -> None:
    quarantine = Quarantine()
    found = quarantine.made(read_records(files, quarantine), _problem)
    quarantine.keep(folder, num_good=len(found))
    problems = [problem for _, problem in found]
    splits = assign_splits([(record.split, _group(record.values)) for record, _ in found])
    digests = {split: write_records(folder, split, _of_split(split, splits, problems)) for split in SPLITS}
    facts = {"data_hash": "-".join(("math", str(READER_VERSION), *(digests[split][:8] for split in SPLITS)))}
    (folder / "facts.json").write_text(json.dumps(facts))


def _of_split(split: str, splits: list[str | None], problems: list[dict[str, str]]) -> Iterator[dict[str, str]]:
    return (problem for own, problem in zip(splits, problems, strict=True) if own == split)


def _problem(record: FileRecord) -> dict[str, str]:
    question = _first(record.values, _QUESTIONS)
    solution = _first(record.values, _SOLUTIONS)
    is_answer = has_mark(solution) or len(solution) <= _LONGEST_BARE_ANSWER
    answer = final_answer(solution) if is_answer else ""
    if not question or not answer:
        raise BadRecordError(
            f"{record.where} has no question and answer: it needs one of {', '.join(_QUESTIONS)}, and one of "
            f"{', '.join(_SOLUTIONS)} that ends in '#### ANSWER' or 'The answer is: ANSWER'; mend or remove it"
        )
    return {"question": question, "answer": answer}


def _group(values: dict[str, Any]) -> str:
    """Rewordings of one question belong together."""
    return " ".join(str(values.get("original_question") or _first(values, _QUESTIONS)).casefold().split())


def _first(values: dict[str, Any], names: tuple[str, ...]) -> str:
    return next((str(values[name]).strip() for name in names if values.get(name) is not None), "")
