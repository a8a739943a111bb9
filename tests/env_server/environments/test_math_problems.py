"""Word problems, generated and from files."""

import json
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from env_server.environment import EnvironmentBrokenError, KnobError, TaskNotFoundError
from env_server.environments.math_problems import DATA_VARIABLE, MathEnvironment
from env_server.environments.word_problems import STEPS, generate
from tests.env_server.environments.samples import sample

TASK = "generated/steps=4/train/000007"


@pytest.fixture
def environment(games: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MathEnvironment]:
    yield MathEnvironment()
    monkeypatch.undo()
    MathEnvironment.warm_up()  # what follows finds the generated problems


def test_each_wrong_answer_halves_the_reward(environment: MathEnvironment) -> None:
    for num_wrong in range(4):
        environment.reset(TASK, 0, {})
        wrong = [environment.step("123456") for _ in range(num_wrong)]
        assert not any(transition.is_terminal or transition.reward or transition.success for transition in wrong)
        last = environment.step(environment.oracle() or "")
        assert (last.reward, last.score, last.success, last.is_terminal) == (0.5**num_wrong,) * 2 + (True, True)


def test_the_last_wrong_try_ends_the_episode(environment: MathEnvironment) -> None:
    environment.reset(TASK, 0, {"tries": 2})
    first, last = environment.step("1"), environment.step("2")
    assert "tries left: 1" in first.observation
    assert (first.is_terminal, last.is_terminal, last.success, last.reward) == (False, True, False, 0.0)
    assert environment.oracle() is None
    with pytest.raises(RuntimeError):
        environment.step("3")


def test_a_solution_may_lead_to_the_answer(environment: MathEnvironment) -> None:
    environment.reset(TASK, 0, {})
    answer = environment.oracle()
    assert environment.step(f"First 12,\nthen 7.\nSo \\boxed{{{answer}}}").success


def test_what_is_no_number_is_a_try_that_is_invalid(environment: MathEnvironment) -> None:
    environment.reset(TASK, 0, {})
    step = environment.step("I do not know")
    assert (step.action_valid, step.is_terminal) == (False, False)
    assert environment.step("0.125").action_valid


def _recalculated(question: str) -> Fraction:
    """The answer by reading the story, sentence by sentence."""
    shares = {"half": 2, "a third": 3, "a quarter": 4, "a fifth": 5}
    times = {"twice": 2, "three times": 3, "four times": 4}
    count = Fraction(0)
    rules = (
        (r"^(\w+) has (\d+) ", lambda m: Fraction(m[2])),
        (r"gives \w+ (\d+) more", lambda m: count + int(m[1])),
        (r"buys (\d+) boxes with (\d+)", lambda m: count + int(m[1]) * int(m[2])),
        (r"A month later \w+ has (.+) as many", lambda m: count * times[m[1]]),
        (r"gives (\d+) \w+ to", lambda m: count - int(m[1])),
        (r"loses (.+) of the", lambda m: count - count / shares[m[1]]),
        (r"sells (\d+)% of", lambda m: count * (100 - int(m[1])) / 100),
        (r"into (\d+) equal piles", lambda m: count / int(m[1])),
        (r"for \$([\d.]+) each", lambda m: count * Fraction(m[1])),
        (r"^\w+ has (twice|three times|four times) as many \w+ as \w+ has now", lambda m: count * (times[m[1]] + 1)),
    )
    for sentence in re.split(r"(?<=[.?]) ", question):
        for pattern, calculate in rules:
            if found := re.search(pattern, sentence):
                count = calculate(found)
                break
    return count


@pytest.mark.parametrize("steps", STEPS)
def test_answers_follow_from_the_questions(steps: int) -> None:
    for index in range(30):
        problem = generate(f"generated/steps={steps}/train/{index:06d}", steps, "train")
        assert Fraction(problem.answer) == _recalculated(problem.question)
        assert Fraction(problem.answer) >= 0


def test_problems_are_what_they_were() -> None:
    """A change here needs another GENERATOR_VERSION."""
    problem = generate("generated/steps=3/test/000007", 3, "test")
    assert problem.question == (
        "Elena has 39 ribbons. A month later Elena has twice as many ribbons as before. Ximena gives Elena 14 more "
        "ribbons. Elena gives 23 ribbons to Ximena. How many ribbons does Elena have then?"
    )
    assert problem.answer == "69"


def _calculation(question: str) -> str:
    """The question without its names and things."""
    things = question.split()[3].rstrip(".")
    return re.sub(r"\b[A-Z]\w+", "N", question.replace(things, "things"))


def test_calculations_of_different_splits_are_disjoint() -> None:
    calculations = {
        split: {_calculation(generate(f"generated/steps=1/{split}/{i:06d}", 1, split).question) for i in range(400)}
        for split in ("train", "valid", "test")
    }
    assert min(map(len, calculations.values())) > 200
    assert not calculations["train"] & calculations["valid"]
    assert not calculations["train"] & calculations["test"]
    assert not calculations["valid"] & calculations["test"]


def test_listings_mix_the_kinds_and_filters_pick_one(environment: MathEnvironment) -> None:
    kinds = [info.kind for info in MathEnvironment.tasks("valid", 0, 2 * len(STEPS))]
    assert kinds == [f"generated/steps={steps}" for steps in STEPS] * 2
    [info] = MathEnvironment.tasks("valid", 9_999, 5, {"steps": "4"})
    assert info.task_id == "generated/steps=4/valid/009999"
    assert MathEnvironment.num_tasks("test", {"steps": "4"}) == 10_000
    with pytest.raises(KnobError, match="filter steps is one of 1, 2, 3"):
        MathEnvironment.num_tasks("test", {"steps": "7"})
    with pytest.raises(KnobError, match="filters: steps"):
        MathEnvironment.num_tasks("test", {"level": "7"})


def _write(folder: Path, name: str, records: list[dict[str, str]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records))


def test_files_of_both_forms_are_served_in_place_of_generated_problems(
    environment: MathEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(
        tmp_path,
        "train.jsonl",
        [{"question": f"What is {n}+{n}?", "answer": f"{n}\n#### {2 * n:,}"} for n in range(40)],
    )
    _write(tmp_path, "test.jsonl", [{"query": "What is 7+7?", "response": "Seven more.\nThe answer is: 14"},
                                    {"query": "Root of 2?", "response": "The answer is: \\sqrt{2}"}])  # fmt: skip
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    generated = MathEnvironment.spec.data_hash
    MathEnvironment.warm_up()
    assert MathEnvironment.spec.data_hash != generated
    sizes = {split: MathEnvironment.num_tasks(split) for split in ("train", "valid", "test")}
    assert sizes["test"] == 2
    assert sizes["train"] + sizes["valid"] == 39  # 7+7 is in the test split
    seen: set[str] = set()
    for split in sizes:
        for info in MathEnvironment.tasks(split, 0, 100):
            seen.add(environment.reset(info.task_id, 0, {}).observation)
            assert environment.step(environment.oracle() or "").success
    assert len(seen) == 41
    environment.reset("file/test/000001", 0, {})
    assert environment.step("1.41").action_valid
    assert environment.step("\\boxed{\\sqrt 2}").action_valid
    with pytest.raises(TaskNotFoundError, match="file/train/000007"):
        environment.reset(TASK, 0, {})


def test_rewordings_of_one_question_stay_together(
    environment: MathEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [
        {"query": f"Form {form} of {n}?", "response": "The answer is: 1", "original_question": f"Original {n}"}
        for n in range(60)
        for form in range(3)
    ]
    _write(tmp_path, "MetaMath.jsonl", records)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "MetaMath.jsonl"))
    originals: dict[str, set[str]] = {}
    for split in ("train", "valid", "test"):
        tasks = MathEnvironment.tasks(split, 0, 1000)
        texts = [environment.reset(info.task_id, 0, {}).observation for info in tasks]
        originals[split] = {text.split(" of ")[1] for text in texts}
        assert len(texts) == 3 * len(originals[split])
    assert sum(map(len, originals.values())) == 60


def test_a_record_without_an_answer_is_left_out_and_named(
    tmp_path: Path, games: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = {"question": "What is 1+1?", "answer": "#### 2"}, {"question": "And?", "answer": "####"}
    _write(tmp_path, "train.jsonl", [good, bad])
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    MathEnvironment.warm_up()
    assert sum(MathEnvironment.num_tasks(split) for split in MathEnvironment.spec.splits) == 1
    assert [record.message for record in caplog.records] == ["records of the data files are left out"]
    _write(tmp_path / "bad", "train.jsonl", [bad])
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "bad"))
    with pytest.raises(EnvironmentBrokenError, match=r"record 1 of .*train.jsonl has no question and answer"):
        MathEnvironment.warm_up()
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(EnvironmentBrokenError, match=rf"{DATA_VARIABLE} names .*absent, which does not exist"):
        MathEnvironment.warm_up()


def test_gsm8k_is_read(environment: MathEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(sample("gsm8k")))
    assert MathEnvironment.num_tasks("test") == 1319
    assert MathEnvironment.num_tasks("train") + MathEnvironment.num_tasks("valid") == 2000
    for info in MathEnvironment.tasks("test", 0, 1319):
        environment.reset(info.task_id, 0, {})
        answer = environment.oracle() or ""
        assert environment.step(f"#### {float(answer.replace(',', '')):.1f}").success
