"""Questions that are answered by searching articles: `search[..]`, then `finish[..]`.

Articles and questions are those of a generated world, or a user's where the environment variable `LONGTURN_SEARCH_DATA`
of the server's process names their folder. No request can name a file.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import ClassVar

from env_server.environment import (
    Determinism,
    EnvironmentSpec,
    KnobSpec,
    KnobValue,
    TaskInfo,
    Transition,
)
from env_server.environments.answer_scores import exact_match, f1
from env_server.environments.bm25 import RANKING_VERSION
from env_server.environments.bracketed import bracketed
from env_server.environments.digests import state_hash
from env_server.environments.episodes import Episode, EpisodicEnvironment
from env_server.environments.search_corpus import Corpus, Question
from env_server.environments.search_generator import GENERATOR_VERSION
from env_server.environments.search_library import GENERATED_HASH, Library, open_library
from env_server.environments.task_table import SPLITS

DATA_VARIABLE = "LONGTURN_SEARCH_DATA"
MAX_ACTION_CHARS = 1000

_INVALID = "Invalid action: use search[keywords], or finish[answer]."
_F1_THRESHOLD = 0.3

KNOBS = (
    KnobSpec(
        name="reward",
        kind="choice",
        default="f1",
        choices=("f1", "em"),
        description=f"for an exact match 1, else F1 if that is {_F1_THRESHOLD} or more (f1), or 0 (em)",
    ),
    KnobSpec(name="results", kind="int", default=3, minimum=1, maximum=10, description="articles that a search shows"),
    KnobSpec(
        name="result_chars",
        kind="int",
        default=1000,
        minimum=100,
        maximum=10_000,
        description="most characters of each",
    ),
)
_SPEC = EnvironmentSpec(
    name="search",
    version=f"{GENERATOR_VERSION}.{RANKING_VERSION}",
    data_hash=GENERATED_HASH,
    action_format="search[keywords] to see the best articles, finish[answer] to answer in a few words.",
    max_turns=50,
    knobs=KNOBS,
    determinism=Determinism.EXACT,
    is_forkable=True,
    splits=SPLITS,
    has_oracle=True,
    has_progress=True,
    licence="Apache-2.0 (generated articles and questions); files have their own",
    description="Find facts in several articles, one after the other, and answer. Success is an exact match. Generated "
    f"questions have the list filter `hops`, the articles needed; with {DATA_VARIABLE} set in the server's environment "
    "the articles and questions are those of the files.",
)


class SearchEnvironment(EpisodicEnvironment):
    """One question at a time. Ids are `generated/hops=N/SPLIT/INDEX`, or `file/SPLIT/INDEX` with files.

    An action of neither form is invalid. The first `finish` ends the episode.
    """

    spec: ClassVar[EnvironmentSpec] = _SPEC

    @classmethod
    def num_tasks(cls, split: str, filters: Mapping[str, str] | None = None) -> int:
        return _open().table.num_tasks(split, filters or {})

    @classmethod
    def tasks(
        cls, split: str, start: int = 0, count: int = 100, filters: Mapping[str, str] | None = None
    ) -> Sequence[TaskInfo]:
        return _open().table.page(split, start, count, filters or {})

    @classmethod
    def task(cls, task_id: str) -> TaskInfo:
        return _open().table.find(task_id).info

    @classmethod
    def warm_up(cls) -> None:
        """Make or open the corpus, and name its content in the spec."""
        cls.spec = dataclasses.replace(_SPEC, data_hash=_open().corpus.data_hash)

    def reset(self, task_id: str, seed: int, knobs: Mapping[str, KnobValue]) -> Transition:
        """The task alone fixes question and corpus; the seed changes nothing."""
        library = _open()
        question = library.question(library.table.find(task_id))
        self._episode = episode = _Episode(library.corpus, question, self.spec.resolve_knobs(knobs))
        return episode.start()


class _Episode(Episode):
    """A question from being asked to being answered."""

    def __init__(self, corpus: Corpus, question: Question, knobs: Mapping[str, KnobValue]) -> None:
        self._corpus = corpus
        self._question = question
        self._knobs = knobs
        self._found: set[str] = set()
        """Titles that were searched for or shown."""
        self._is_over = False

    def start(self) -> Transition:
        return self._transition(f"Question: {self._question.text}\nActions: search[keywords], finish[answer]")

    def step(self, action: str) -> Transition:
        if self._is_over:
            raise RuntimeError("step after the end of the episode")
        form = bracketed(action, max_chars=MAX_ACTION_CHARS)
        if form is None or form[0] not in ("search", "finish"):
            return self._transition(_INVALID, is_valid=False)
        return self._finish(form[1]) if form[0] == "finish" else self._search(form[1])

    def oracle(self) -> str | None:
        """A search for the next article that leads to the answer, where those are known; then the answer."""
        if self._is_over:
            return None
        missing = self._missing()
        return f"search[{missing[0]}]" if missing else f"finish[{self._question.answers[0]}]"

    def _search(self, query: str) -> Transition:
        shown = self._corpus.search(query, int(self._knobs["results"]))
        self._found |= {article.title for article in shown} | {query}
        limit = int(self._knobs["result_chars"])
        results = [
            f"[{number}] {article.title}\n{article.text[:limit]}" for number, article in enumerate(shown, start=1)
        ]
        return self._transition("\n\n".join(results) or "No article was found.")

    def _finish(self, answer: str) -> Transition:
        self._is_over = True
        is_exact = any(exact_match(answer, expected) for expected in self._question.answers)
        overlap = max(f1(answer, expected) for expected in self._question.answers)
        counts = self._knobs["reward"] == "f1" and overlap >= _F1_THRESHOLD
        reward = 1.0 if is_exact else overlap if counts else 0.0
        text = "Correct." if is_exact else "That is not the answer."
        return self._transition(
            text, reward=reward, is_exact=is_exact, extras={"em": f"{is_exact:d}", "f1": f"{overlap:.6f}"}
        )

    def _missing(self) -> list[str]:
        return [title for title in self._question.titles if title not in self._found]

    def _transition(
        self,
        observation: str,
        *,
        is_valid: bool = True,
        reward: float = 0.0,
        is_exact: bool = False,
        extras: Mapping[str, str] | None = None,
    ) -> Transition:
        num_steps = len(self._question.titles) + 1
        num_left = 0 if is_exact else num_steps if self._is_over else len(self._missing()) + 1
        return Transition(
            observation=observation,
            reward=reward,
            score=reward,
            success=is_exact,
            is_terminal=self._is_over,
            action_valid=is_valid,
            progress=1.0 - num_left / num_steps,
            extras=extras or {},
            state_hash=state_hash(self._question.text, observation, sorted(self._found), self._is_over),
        )


def _open() -> Library:
    return open_library(DATA_VARIABLE, os.environ.get(DATA_VARIABLE, ""))
