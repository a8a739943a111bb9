"""Stemming and ranking against published and hand-computed numbers."""

from pathlib import Path

import pytest

from env_server.environments.bm25 import Bm25Index, terms, write_index
from env_server.environments.porter_stemmer import stem

# The examples of Porter's paper, each taken through all steps.
EXAMPLES = """
caresses:caress ponies:poni ties:ti cats:cat feed:feed agreed:agre plastered:plaster bled:bled motoring:motor sing:sing
conflated:conflat troubled:troubl sized:size hopping:hop tanned:tan falling:fall hissing:hiss fizzed:fizz failing:fail
filing:file happy:happi sky:sky relational:relat conditional:condit rational:ration digitizer:digit radically:radic
differently:differ vilely:vile analogously:analog vietnamization:vietnam predication:predic operator:oper
feudalism:feudal decisiveness:decis hopefulness:hope callousness:callous formality:formal sensitivity:sensit
sensibility:sensibl triplicate:triplic formative:form formalize:formal electricity:electr electrical:electr hopeful:hope
goodness:good revival:reviv allowance:allow inference:infer airliner:airlin gyroscopic:gyroscop adjustable:adjust
defensible:defens irritant:irrit replacement:replac adjustment:adjust dependent:depend adoption:adopt communism:commun
activate:activ homologous:homolog effective:effect bowdlerize:bowdler probate:probat rate:rate cease:ceas roll:roll
controlling:control generalizations:gener oscillators:oscil by:by
"""


@pytest.mark.parametrize("example", EXAMPLES.split())
def test_words_are_stemmed_as_porter_does(example: str) -> None:
    word, expected = example.split(":")
    assert stem(word) == expected


def test_texts_are_taken_apart_like_lucene_does() -> None:
    text = "The Women's 3.5-inch SHOES, for 1,000 runners: don't walk! Café_x"
    assert terms(text) == ["women", "3.5", "inch", "shoe", "1,000", "runner", "don't", "walk", "café_x"]


@pytest.fixture
def index(tmp_path: Path) -> Bm25Index:
    write_index(tmp_path, ["red shoes", "Red, red hat box!", "blue hats", ""])
    return Bm25Index(tmp_path)


def test_scores_are_those_computed_by_hand(index: Bm25Index) -> None:
    # 4 documents of 2, 4, 2 and 0 terms: 2 on average. `red` is in 2 of them: ln(1 + 2.5 / 2.5) = 0.693147.
    # Document 0: 1 / (1 + 0.9 * (0.6 + 0.4 * 2 / 2)) = 1 / 1.9.
    # Document 1: 2 / (2 + 0.9 * (0.6 + 0.4 * 4 / 2)) = 2 / 3.26.
    assert index.ranked("red", 10) == [(1, pytest.approx(0.425244, abs=1e-6)), (0, pytest.approx(0.364814, abs=1e-6))]
    # `hat` is in 2 documents as well, once: 1 / 2.26 in document 1, and a term that is asked for twice counts twice.
    [first, second] = index.ranked("a hat, the hat", 10)
    assert first == (2, pytest.approx(2 * 0.364814, abs=1e-6))
    assert second == (1, pytest.approx(2 * 0.306702, abs=1e-6))


def test_equal_scores_come_in_document_order_and_unknown_words_find_nothing(tmp_path: Path) -> None:
    write_index(tmp_path, ["oak table", "oak table", "elm table", "oak table"])
    index = Bm25Index(tmp_path)
    assert [position for position, _ in index.ranked("oak", 2)] == [0, 1]
    assert index.ranked("the zebra", 5) == []
    assert index.ranked("", 5) == []


def test_an_index_over_nothing_finds_nothing(tmp_path: Path) -> None:
    write_index(tmp_path, [])
    assert Bm25Index(tmp_path).ranked("red", 5) == []
