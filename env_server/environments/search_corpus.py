"""Articles that can be searched, and questions about them."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from env_server.environments.bm25 import Bm25Index, write_index
from env_server.environments.data_store import Records, write_records


@dataclass(frozen=True, slots=True, kw_only=True)
class Article:
    """One document."""

    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, every answer that counts, and the titles of the articles that lead to them where they are known."""

    text: str
    answers: tuple[str, ...]
    titles: tuple[str, ...]


class Corpus:
    """The articles that `write_corpus` was given, and a search over them."""

    def __init__(self, folder: Path) -> None:
        self._records = Records(folder, "articles")
        self._index = Bm25Index(folder)
        self.data_hash: str = json.loads((folder / "facts.json").read_bytes())["data_hash"]

    def search(self, query: str, limit: int) -> list[Article]:
        """The best articles, best first."""
        return [Article(**self._records[position]) for position, _ in self._index.ranked(query, limit)]


def write_corpus(folder: Path, articles: Iterable[Article]) -> str:
    """Write articles for `Corpus`; returns a digest of their content."""
    digest = write_records(folder, "articles", (asdict(article) for article in articles))
    records = Records(folder, "articles")
    # The title counts twice: an article on a subject comes before those that only mention it.
    write_index(folder, ("{title} {title} {text}".format(**records[position]) for position in range(len(records))))
    return digest


def write_facts(folder: Path, data_hash: str) -> None:
    """The last thing that `Corpus` needs."""
    (folder / "facts.json").write_text(json.dumps({"data_hash": data_hash}))
