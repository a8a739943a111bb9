"""A user's corpus and questions.

The folder holds questions as JSON or JSONL with `question` and `answer` (or a list of them under `golden_answers`,
`ground_truth` or `answers`), and articles as `corpus*.jsonl` with `title` and `text`, or with `contents` whose first
line is the title. Questions in HotpotQA's own form bring their articles along (`context`); `supporting_facts` name the
articles that lead to the answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from env_server.environment import EnvironmentBrokenError
from env_server.environments.bracketed import one_line
from env_server.environments.data_store import write_records
from env_server.environments.search_corpus import Article, Question, write_corpus, write_facts
from env_server.environments.split_files import (
    BadRecordError,
    FileRecord,
    Quarantine,
    assign_splits,
    data_files,
    read_records,
)
from env_server.environments.task_table import SPLITS

READER_VERSION = 2
"""Rises whenever the same files may give other episodes."""

_ANSWERS = ("golden_answers", "ground_truth", "answers", "answer")


class SearchFolder:
    """The files of a folder, by what they hold. Raises `EnvironmentBrokenError` where there are no questions."""

    def __init__(self, setting: str, path_text: str) -> None:
        self.files = data_files(setting, path_text)
        self._corpus = [file for file in self.files if file.stem.startswith("corpus")]
        self._questions = [file for file in self.files if file not in self._corpus]
        if not self._questions:
            raise EnvironmentBrokenError(
                f"{setting} names {path_text}, which holds no questions; add train.jsonl, valid.jsonl or test.jsonl"
                " with 'question' and 'answer' in each line"
            )

    def prepare(self, folder: Path) -> None:
        """Write articles and questions for the environment."""
        quarantine = Quarantine()
        brought = quarantine.made(read_records(self._questions, quarantine), _context)
        articles = self._articles(brought, quarantine)
        if not articles:
            hint = "add corpus.jsonl with 'title' and 'text' in each line"
            raise EnvironmentBrokenError(quarantine.first or f"{self._questions[0].parent} holds no articles; {hint}")
        found = quarantine.made((record for record, _ in brought), _question)
        quarantine.keep(folder, num_good=len(found))
        digests = [write_corpus(folder, articles)]
        questions = [question for _, question in found]
        splits = assign_splits([(record.split, " ".join(q.text.casefold().split())) for record, q in found])
        for split in SPLITS:
            own = (asdict(q) for q, found in zip(questions, splits, strict=True) if found == split)
            digests.append(write_records(folder, f"questions-{split}", own))
        write_facts(folder, "-".join(("search", str(READER_VERSION), *(digest[:8] for digest in digests))))

    def _articles(
        self, brought: Sequence[tuple[FileRecord, Sequence[Article]]], quarantine: Quarantine
    ) -> list[Article]:
        if self._corpus:
            return [article for _, article in quarantine.made(read_records(self._corpus, quarantine), _article)]
        return list(dict.fromkeys(article for _, articles in brought for article in articles))


def _article(record: FileRecord) -> Article:
    values = record.values
    if "title" in values and "text" in values:
        return Article(title=one_line(str(values["title"])), text=str(values["text"]))
    title, _, text = str(values.get("contents", "")).partition("\n")
    if not title:
        raise BadRecordError(f"{record.where} has neither 'title' and 'text' nor 'contents'; mend or remove it")
    return Article(title=one_line(title).strip('"'), text=text)


def _context(record: FileRecord) -> list[Article]:
    """Pairs of title and sentences."""
    try:
        pairs = [(title, "".join(sentences)) for title, sentences in record.values.get("context", ())]
        return [Article(title=one_line(str(title)), text=text) for title, text in pairs]
    except (TypeError, ValueError) as error:
        raise BadRecordError(f"{record.where}: context is no list of [title, [sentences]]; mend it") from error


def _question(record: FileRecord) -> Question:
    text = str(record.values.get("question", "")).strip()
    answers = _answers(record.values)
    if not text or not answers:
        raise BadRecordError(f"{record.where} has no 'question' and one of {', '.join(_ANSWERS)}; mend or remove it")
    titles = dict.fromkeys(one_line(str(fact[0])) for fact in record.values.get("supporting_facts", ()))
    return Question(text=text, answers=answers, titles=tuple(titles))


def _answers(values: Mapping[str, Any]) -> tuple[str, ...]:
    found: Any = next((values[name] for name in _ANSWERS if values.get(name) is not None), ())
    listed = found if isinstance(found, list) else [found] if found != () else []
    return tuple(answer for answer in (one_line(str(answer)) for answer in listed) if answer)
