"""EM and F1 as the evaluation scripts of SQuAD and HotpotQA have them."""

import pytest

from env_server.environments.answer_scores import exact_match, f1, normalized


def test_case_punctuation_articles_and_blanks_do_not_count() -> None:
    assert normalized("  The  Eiffel-Tower, (a) landmark! ") == "eiffeltower landmark"
    assert exact_match("the Beatles", "Beatles.")
    assert not exact_match("Beatles", "The Beat")


@pytest.mark.parametrize(
    ("given", "expected", "score"),
    [
        ("Chief of Protocol", "chief of protocol", 1.0),
        ("the chief", "Chief of Protocol", 0.5),  # precision 1, recall 1/3
        ("Anna Verrick of Ellerby", "Anna Verrick", 2 / 3),  # precision 1/2, recall 1
        ("red red blue", "red blue blue", 2 / 3),  # two of three words shared, each counted as often as in both
        ("no", "no", 1.0),
        ("yes", "no", 0.0),
        ("yes it is", "yes", 0.0),
        ("noanswer", "answer", 0.0),
        ("", "anything", 0.0),
        ("anything", "the", 0.0),
    ],
)
def test_f1_counts_shared_words(given: str, expected: str, score: float) -> None:
    assert f1(given, expected) == pytest.approx(score)
