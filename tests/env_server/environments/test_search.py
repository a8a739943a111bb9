"""Questions over the generated world, and over a user's files."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from env_server.environment import EnvironmentBrokenError, KnobError, KnobValue, Transition
from env_server.environments.search import DATA_VARIABLE, SearchEnvironment
from env_server.environments.search_generator import HOPS, articles, generate_question, make_world
from env_server.environments.search_library import open_library
from env_server.environments.search_words import NUM_SUBJECTS, RELATIONS

TASK = "generated/hops=3/train/000000"
SPLITS = ("train", "valid", "test")


@pytest.fixture(autouse=True)
def _generated(games: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    monkeypatch.undo()
    SearchEnvironment.warm_up()  # what follows finds the generated corpus


def start(task_id: str = TASK, **knobs: KnobValue) -> tuple[SearchEnvironment, Transition]:
    environment = SearchEnvironment()
    return environment, environment.reset(task_id, 0, knobs)


def follow(environment: SearchEnvironment) -> list[Transition]:
    transitions: list[Transition] = []
    while not (transitions and transitions[-1].is_terminal):
        transitions.append(environment.step(environment.oracle() or ""))
        assert len(transitions) < 50
    return transitions


def test_every_article_is_the_first_result_for_its_title() -> None:
    corpus = open_library(DATA_VARIABLE, "").corpus
    world = make_world()
    assert len(world) == sum(NUM_SUBJECTS.values())
    missed = [name for name in world if corpus.search(name, 1)[0].title != name]
    assert missed == []


def test_articles_state_all_relations_of_their_subject() -> None:
    texts = {article.title: article.text for article in articles()}
    for subject in make_world().values():
        assert len(subject.related) == len(RELATIONS[subject.kind])
        assert all(value in texts[subject.name] for value in subject.related.values())


@pytest.mark.parametrize("hops", HOPS)
def test_answers_follow_from_the_relations(hops: int) -> None:
    world = make_world()
    for index in range(20):
        question = generate_question(f"generated/hops={hops}/valid/{index:06d}", hops, "valid")
        assert len(question.titles) == len(set(question.titles)) == hops
        assert question.text.count("\n") == (hops - 1 if hops > 4 else 0)
        assert question.titles[0] in question.text
        for one, other in zip(question.titles, question.titles[1:], strict=False):
            assert other in world[one].related.values()
            assert other not in question.text.replace(question.titles[0], "")
        assert question.answers[0] in world[question.titles[-1]].related.values()


def test_one_question_in_full() -> None:
    """A change here needs another GENERATOR_VERSION."""
    environment, first = start()
    assert first.observation == (
        "Question: Which instrument did the teacher of the founder of Brannock Brothers play?\n"
        "Actions: search[keywords], finish[answer]"
    )
    result = environment.step("search[Brannock Brothers founder]")
    assert result.observation.startswith("[1] Brannock Brothers\nBrannock Brothers is a company. ")
    assert "was founded by Tobias Jastrow." in result.observation
    assert result.observation.count("\n\n[") == 2
    assert result.progress == 0.25
    assert [environment.oracle(), environment.step("search[Tobias Jastrow]").progress] == [
        "search[Tobias Jastrow]",
        0.5,
    ]
    assert environment.step("search[Tobias Zelenka]").progress == 0.75
    last = environment.step("finish[The lute.]")
    assert (last.reward, last.success, last.progress, last.is_terminal) == (1.0, True, 1.0, True)
    assert last.extras == {"em": "1", "f1": "1.000000"}
    assert environment.oracle() is None
    with pytest.raises(RuntimeError):
        environment.step("search[x]")


def test_questions_of_different_splits_start_from_different_subjects() -> None:
    starts = {
        split: {generate_question(f"generated/hops=2/{split}/{i:06d}", 2, split).titles[0] for i in range(400)}
        for split in SPLITS
    }
    assert all(len(found) > 100 for found in starts.values())
    assert not starts["train"] & starts["valid"]
    assert not starts["train"] & starts["test"]
    assert not starts["valid"] & starts["test"]


def test_the_oracle_wins_with_one_result_at_a_time_and_after_detours() -> None:
    for hops in (1, 2, 4, 32):
        environment, _ = start(f"generated/hops={hops}/test/000003", results=1)
        environment.step("search[a river]")
        environment.step("nonsense")
        transitions = follow(environment)
        assert transitions[-1].success
        assert len(transitions) <= hops + 1


@pytest.mark.parametrize(
    ("reward", "answer", "earned"),
    [("f1", "lanterns", 1.0), ("em", "lanterns", 1.0), ("f1", "lanterns and lamps", 0.5),
     ("em", "lanterns and lamps", 0.0), ("f1", "it makes all kinds of lanterns", 0.0), ("f1", "glass", 0.0)],
)  # fmt: skip
def test_answers_earn_the_published_reward(reward: str, answer: str, earned: float) -> None:
    environment, _ = start("generated/hops=2/train/000000", reward=reward)
    last = environment.step(f"finish[{answer}]")
    assert (last.reward, last.score) == (pytest.approx(earned),) * 2
    assert last.success == (answer == "lanterns")
    assert last.is_terminal


def test_results_are_as_many_and_as_long_as_asked_for() -> None:
    environment, _ = start(results=5, result_chars=100)
    observation = environment.step("search[river]").observation
    assert re.findall(r"^\[(\d)\]", observation, re.MULTILINE) == ["1", "2", "3", "4", "5"]
    assert all(len(part.split("\n")[1]) <= 100 for part in observation.split("\n\n"))
    assert environment.step("search[xyzzy]").observation == "No article was found."
    with pytest.raises(KnobError, match=r"\[1, 10\]"):
        start(results=11)


@pytest.mark.parametrize("action", ["look up the river", "click[x]", "search[]", "search", "finish[ ]", "finish cello"])
def test_other_actions_are_invalid_and_end_nothing(action: str) -> None:
    environment, _ = start()
    step = environment.step(action)
    assert (step.action_valid, step.is_terminal, step.reward) == (False, False, 0.0)


def test_listings_mix_the_hops_and_filters_pick_one() -> None:
    assert [info.knobs["hops"] for info in SearchEnvironment.tasks("train", 0, len(HOPS))] == list(HOPS)
    assert SearchEnvironment.tasks("train", 5, 1, {"hops": "8"})[0].task_id == "generated/hops=8/train/000005"


HOTPOT = [
    {
        "_id": "1",
        "question": "Which river passes the birthplace of Ada?",
        "answer": "Thames",
        "supporting_facts": [["Ada", 0], ["London", 1], ["Ada", 1]],
        "context": [["Ada ", ["Ada was born in London.", " She wrote."]], ["London", ["A city.", " On the Thames."]]],
    },
    {
        "_id": "2",
        "question": "Is it?",
        "answer": "yes",
        "supporting_facts": [],
        "context": [["London", ["A city.", " On the Thames."]]],
    },
]


def test_questions_in_the_form_of_hotpotqa_bring_their_articles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dev_distractor.json").write_text(json.dumps(HOTPOT))
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    generated = SearchEnvironment.spec.data_hash
    SearchEnvironment.warm_up()
    assert SearchEnvironment.spec.data_hash != generated
    assert {split: SearchEnvironment.num_tasks(split) for split in SPLITS} == {"train": 0, "valid": 2, "test": 0}
    environment, first = start("file/valid/000000")
    assert "birthplace of Ada" in first.observation
    plan = [environment.oracle(), environment.step("search[Ada]").observation, environment.oracle()]
    assert plan[0] == "search[Ada]"
    assert plan[1] == "[1] Ada\nAda was born in London. She wrote."
    assert plan[2] == "search[London]"
    assert follow(environment)[-1].success
    environment, _ = start("file/valid/000001")
    assert environment.oracle() == "finish[yes]"


def test_a_corpus_and_several_right_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = [{"id": "0", "contents": '"Ada"\nAda was born in London.'}, {"title": "London", "text": "On the Thames."}]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(article) + "\n" for article in corpus))
    questions = [{"question": "Where was Ada born?", "golden_answers": ["London", "London, England"]}]
    (tmp_path / "test.jsonl").write_text(json.dumps(questions[0]))
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    for answer, is_right in (("london england", True), ("London", True), ("Paris", False)):
        environment, _ = start("file/test/000000")
        assert environment.step("search[Ada]").observation == "[1] Ada\nAda was born in London."
        assert environment.step(f"finish[{answer}]").success is is_right


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"corpus.jsonl": '{"title": "a", "text": "b"}'}, "holds no questions"),
        ({"train.jsonl": '{"question": "a", "answer": "b"}'}, "holds no articles"),
        ({"train.jsonl": '{"question": "a"}'}, "holds no articles"),
        ({"train.jsonl": '{"question": "a"}', "corpus.jsonl": '{"title": "a", "text": "b"}'}, "record 1 of .* has no"),
        ({"train.jsonl": '{"question": "a", "answer": "b"}', "corpus.jsonl": '{"id": 1}'}, "has neither 'title'"),
        ({"train.jsonl": '{"question": "a", "answer": "b", "context": {"title": []}}'}, "context is no list"),
    ],
)  # fmt: skip
def test_folders_that_lack_something_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], message: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    with pytest.raises(EnvironmentBrokenError, match=message):
        SearchEnvironment.warm_up()
