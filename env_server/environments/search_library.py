"""Where the search environment's articles and questions come from; prepared once in the cache."""

from functools import lru_cache
from pathlib import Path
from typing import Protocol

from env_server.environments.bm25 import RANKING_VERSION
from env_server.environments.data_store import Records, files_key, prepared
from env_server.environments.search_corpus import Corpus, Question, write_corpus, write_facts
from env_server.environments.search_files import READER_VERSION, SearchFolder
from env_server.environments.search_generator import GENERATOR_VERSION, HOPS, articles, generate_question
from env_server.environments.split_files import tell_what_is_left_out
from env_server.environments.task_table import SPLITS, TaskKey, TaskTable

GENERATED_HASH = f"search-generated-{GENERATOR_VERSION}.{RANKING_VERSION}"


class Library(Protocol):
    """A corpus and the questions about it."""

    corpus: Corpus
    table: TaskTable

    def question(self, key: TaskKey) -> Question:
        """The question of a task."""
        ...


class GeneratedLibrary:
    """The generated world."""

    table = TaskTable(
        "search",
        {f"generated/hops={hops}": {"hops": hops} for hops in HOPS},
        {"train": 100_000, "valid": 10_000, "test": 10_000},
    )

    def __init__(self) -> None:
        self.corpus = Corpus(prepared("search", f"generated-{GENERATOR_VERSION}.{RANKING_VERSION}", self._prepare))

    def question(self, key: TaskKey) -> Question:
        return generate_question(key.task_id, int(key.knobs["hops"]), key.split)

    def _prepare(self, folder: Path) -> None:
        write_corpus(folder, articles())
        write_facts(folder, GENERATED_HASH)


class FileLibrary:
    """A user's files."""

    def __init__(self, source: SearchFolder) -> None:
        folder = prepared("search", files_key(source.files, (READER_VERSION, RANKING_VERSION)), source.prepare)
        tell_what_is_left_out(folder)
        self.corpus = Corpus(folder)
        self._questions = {split: Records(folder, f"questions-{split}") for split in SPLITS}
        sizes = {split: len(records) for split, records in self._questions.items()}
        self.table = TaskTable("search", {"file": {}}, sizes)

    def question(self, key: TaskKey) -> Question:
        values = self._questions[key.split][key.index]
        return Question(text=values["text"], answers=tuple(values["answers"]), titles=tuple(values["titles"]))


@lru_cache(maxsize=4)
def open_library(setting: str, path_text: str) -> Library:
    """The library of the files at a path, or the generated one where the path is empty; once per process.

    Raises `EnvironmentBrokenError`, naming `setting`.
    """
    return FileLibrary(SearchFolder(setting, path_text)) if path_text else GeneratedLibrary()
