"""A generated world of people, towns, rivers, companies, books and regions: an article on each, and questions.

Each article says what its own subject is related to, so a question over several relations needs as many articles, and
the answer follows from the relations. A question belongs to a split by the digest of the subject it starts from, so no
question is in two splits.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from env_server.environments.digests import Draws, number_of
from env_server.environments.search_corpus import Article, Question
from env_server.environments.search_words import (
    ASIDES,
    COMPANY_ENDINGS,
    FIRST_NAMES,
    KIND_NOUNS,
    LAST_NAMES,
    NUM_SUBJECTS,
    PLACE_BEGINNINGS,
    REGION_ENDINGS,
    RELATIONS,
    RIVER_ENDINGS,
    TITLE_BEGINNINGS,
    TITLE_ENDINGS,
    TOWN_ENDINGS,
    Relation,
)

GENERATOR_VERSION = 1
"""Rises whenever a task id may give another episode."""

HOPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of articles that a question may need."""

_LONGEST_NESTED = 4
"""Questions over more relations are told as a list of steps."""

# One quarter of all subjects each for valid and test.
_SPLIT_OF_QUARTER = ("train", "train", "valid", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What an article is about."""

    name: str
    kind: str
    related: Mapping[str, str]
    """Relation to value: the other subject's name, or a year, a thing."""


World = Mapping[str, Subject]
"""Subjects by name, in the order of their articles."""


@lru_cache(maxsize=1)
def make_world() -> World:
    """The world, always the same."""
    draws = Draws(f"search|{GENERATOR_VERSION}|world")
    names = {kind: draws.sample(_names(kind), count) for kind, count in NUM_SUBJECTS.items()}
    subjects = [_subject(draws, name, kind, names) for kind, found in names.items() for name in found]
    return {subject.name: subject for subject in subjects}


def articles() -> Iterator[Article]:
    """An article on every subject of the world."""
    for subject in make_world().values():
        draws = Draws(f"search|{GENERATOR_VERSION}|article|{subject.name}")
        facts = [
            relation.sentence.replace("{}", subject.name).replace("{value}", subject.related[relation.name])
            for relation in RELATIONS[subject.kind]
        ]
        sentences = draws.sample([*facts, *draws.sample(ASIDES[subject.kind], 2)], len(facts) + 2)
        yield Article(title=subject.name, text=" ".join([f"{subject.name} {KIND_NOUNS[subject.kind]}.", *sentences]))


def generate_question(task_id: str, hops: int, split: str) -> Question:
    """The question of a task id, over `hops` relations from one subject to the answer, no subject twice."""
    world = make_world()
    starts = _starts()[split]
    for attempt in itertools.count():
        draws = Draws(f"search|{GENERATOR_VERSION}|question|{task_id}|{attempt}")
        chain = _walk(draws, world, draws.pick(starts), hops)
        if chain is not None:
            return _question(world, *chain)
    raise AssertionError("unreachable")


@lru_cache(maxsize=1)
def _starts() -> Mapping[str, Sequence[str]]:
    split_by_name = {name: _SPLIT_OF_QUARTER[number_of(f"search|start|{name}") % 4] for name in make_world()}
    return {split: [name for name, own in split_by_name.items() if own == split] for split in _SPLIT_OF_QUARTER}


def _walk(draws: Draws, world: World, start: str, hops: int) -> tuple[list[str], list[Relation]] | None:
    """The subjects passed, the start included, and one more relation than steps between them; None at a dead end."""
    names, relations = [start], list[Relation]()
    while len(relations) < hops:
        subject = world[names[-1]]
        is_last = len(relations) == hops - 1
        fitting = [
            relation
            for relation in RELATIONS[subject.kind]
            if (is_last or relation.leads_to) and subject.related[relation.name] not in names
        ]
        if not fitting:
            return None
        relations.append(draws.pick(fitting))
        if not is_last:
            names.append(subject.related[relations[-1].name])
    return names, relations


def _question(world: World, names: Sequence[str], relations: Sequence[Relation]) -> Question:
    *steps, last = relations
    answer = world[names[-1]].related[last.name]
    told: list[str] = []
    phrase = names[0]
    for number, step in enumerate(steps, start=1):
        phrase = step.phrase.replace("{}", phrase)
        if len(relations) > _LONGEST_NESTED:
            told.append(f"{number}. Find {phrase}.")
            phrase = f"this {step.leads_to}"
    text = "\n".join([*told, last.question.replace("{}", phrase)])
    return Question(text=text, answers=(answer,), titles=tuple(names))


def _subject(draws: Draws, name: str, kind: str, names: Mapping[str, Sequence[str]]) -> Subject:
    related: dict[str, str] = {}
    for relation in RELATIONS[kind]:
        value = _value(draws, relation, names)
        while value == name:
            value = _value(draws, relation, names)
        related[relation.name] = value
    return Subject(name=name, kind=kind, related=related)


def _value(draws: Draws, relation: Relation, names: Mapping[str, Sequence[str]]) -> str:
    if relation.leads_to:
        return draws.pick(names[relation.leads_to])
    return str(draws.between(*relation.numbers)) if relation.numbers else draws.pick(relation.values)


def _names(kind: str) -> list[str]:
    match kind:
        case "person":
            return _pairs(FIRST_NAMES, " ", LAST_NAMES)
        case "town":
            return _pairs(PLACE_BEGINNINGS, "", TOWN_ENDINGS)
        case "river":
            return _pairs(PLACE_BEGINNINGS, "", RIVER_ENDINGS)
        case "region":
            return _pairs(PLACE_BEGINNINGS, "", REGION_ENDINGS)
        case "company":
            return _pairs((*LAST_NAMES, *PLACE_BEGINNINGS), " ", COMPANY_ENDINGS)
        case _:
            return _pairs(TITLE_BEGINNINGS, " ", TITLE_ENDINGS)


def _pairs(beginnings: Sequence[str], between: str, endings: Sequence[str]) -> list[str]:
    return [f"{beginning}{between}{ending}" for beginning in beginnings for ending in endings]
