"""Programming problems: the bundled ones, a user's, and hostile programs on a real server."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from env_server.environment import EnvironmentBrokenError, KnobError, TaskNotFoundError, Transition
from env_server.environments import code
from env_server.environments.code import CodeEnvironment
from env_server.environments.code_data import DATA_VARIABLE, problem_set
from env_server.environments.code_judge import is_expected, is_expected_result
from env_server.environments.code_problems import BadProblemError, problem_from_row, unfenced
from env_server.environments.textworld_cache import CACHE_VARIABLE
from env_server.sandbox.isolation import INSECURE_VARIABLE, Isolation, isolation
from env_server.sandbox.records import Verdict
from env_server.sandbox.sandbox import Sandbox
from longturn.v1 import environment_pb2
from tests.env_server.environments.code_sources.write import DATA_FILE, SOURCES, data_text
from tests.env_server.loopback import loopback
from tests.env_server.sandbox.machine import sandbox_processes

RUNNING = environment_pb2.EPISODE_STATUS_RUNNING
TASK = "own/train/run_lengths"


@pytest.fixture
def environment() -> Iterator[CodeEnvironment]:
    """An environment on the bundled problems, whose sandbox holds on this machine."""
    if not isolation().is_whole:
        pytest.skip(f"programs did not run: {isolation().explain()}")
    environment = CodeEnvironment()
    yield environment
    environment.close()


def test_the_data_file_is_what_its_sources_make() -> None:
    assert DATA_FILE.read_text(encoding="utf-8") == data_text(), (
        "run python -m tests.env_server.environments.code_sources.write"
    )
    assert len(SOURCES) >= 40
    assert len({source.name for source in SOURCES}) == len(SOURCES)


@pytest.mark.parametrize("kind", sorted({source.kind for source in SOURCES}))
def test_every_reference_solution_passes_every_test(kind: str) -> None:
    sandbox = Sandbox(layers=isolation().layers)
    problems = problem_set()
    entries = [entry for split in problems.splits for entry in problems.by_split[split] if entry.kind == kind]
    assert entries
    for entry in entries:
        problem = problems.problem(entry.task_id)
        outcomes = sandbox.run(problem.solution or "", tuple(test.case for test in problem.tests))
        check = is_expected_result if problem.function else is_expected
        for test, outcome in zip(problem.tests, outcomes, strict=True):
            assert outcome.verdict is Verdict.FINISHED, (entry.task_id, outcome)
            assert check(outcome.output, test.expected), (entry.task_id, test, outcome)


def test_tasks_are_listed_by_split_and_kind() -> None:
    ids = {split: [info.task_id for info in CodeEnvironment.tasks(split)] for split in CodeEnvironment.spec.splits}
    assert sum(map(len, ids.values())) == len(SOURCES)
    assert min(map(len, ids.values())) >= 7
    graphs = CodeEnvironment.tasks("train", 0, 100, {"kind": "graphs"})
    assert {info.kind for info in graphs} == {"graphs"}
    assert CodeEnvironment.num_tasks("train", {"kind": "graphs"}) == len(graphs)
    assert CodeEnvironment.task(TASK).task_id == TASK
    with pytest.raises(TaskNotFoundError, match="own/train/run_lengths"):
        CodeEnvironment.task("own/train/run_length")
    with pytest.raises(KnobError, match="filters: kind"):
        CodeEnvironment.tasks("train", 0, 1, {"level": "1"})


def play(environment: CodeEnvironment, *actions: str, task_id: str = TASK, **knobs: object) -> list[Transition]:
    transitions = [environment.reset(task_id, 0, knobs)]  # type: ignore[arg-type]
    return transitions + [environment.step(action) for action in actions]


def test_a_wrong_program_hears_what_failed_and_a_right_one_wins(environment: CodeEnvironment) -> None:
    start, wrong = play(environment, "print(input())")
    right = environment.step(environment.oracle() or "")
    assert "Example 1, input:\naaabcc" in start.observation
    assert wrong.observation.splitlines() == [
        "0 of 12 tests passed.",
        "Test 1: wrong answer.",
        "Input: aaabcc",
        "Expected: a3b1c2",
        "Got: aaabcc",
        "Not solved. 4 submissions left.",
    ]
    assert (wrong.success, wrong.is_terminal, wrong.reward) == (False, False, 0.0)
    assert (right.success, right.is_terminal, right.reward, right.score, right.progress) == (True, True, 1.0, 1.0, 1.0)


# Right for both examples alone.
HALF = "word = input()\nprint({'aaabcc': 'a3b1c2', 'z': 'z1'}.get(word, word))"


def test_hidden_tests_stay_hidden(environment: CodeEnvironment) -> None:
    _, half = play(environment, HALF)
    assert half.observation.splitlines() == [
        "2 of 12 tests passed.",
        "Test 3: wrong answer.",
        "Not solved. 4 submissions left.",
    ]
    told = "word = input()\nif word in ('aaabcc', 'z'):\n    print({'z': 'z1'}.get(word, 'a3b1c2'))\nelse:\n    raise "
    for error in ("ValueError(word)", "type(word, (Exception,), {})", "SystemExit(word)"):
        _, failed = play(environment, told + error)
        assert "aaaa" not in failed.observation, failed
    _, shown = play(environment, HALF, reveals_tests=True)
    assert "Input: aaaaaaa" in shown.observation


def test_rewards_are_gains_of_the_best_share(environment: CodeEnvironment) -> None:
    _, half, worse, again = play(environment, HALF, "print()", HALF)
    assert [half.reward, worse.reward, again.reward] == [2 / 12, 0.0, 0.0]
    assert again.score == again.progress == 2 / 12
    _, nothing = play(environment, HALF, reward="all")
    assert (nothing.reward, nothing.score, nothing.progress) == (0.0, 0.0, 2 / 12)


def test_submissions_are_counted_and_actions_without_a_program_are_not(environment: CodeEnvironment) -> None:
    transitions = play(environment, "", " \n", "\0", "\ud800", "```python\n```", "x" * 70_000, max_submissions=1)
    assert [transition.action_valid for transition in transitions[1:]] == [False] * 6
    assert not any(transition.is_terminal for transition in transitions)
    last = environment.step("print(1)")
    assert (last.is_terminal, last.success, last.action_valid) == (True, False, True)


@pytest.mark.parametrize(("feedback", "first"), [("count", "0 of 12 tests passed."),
                                                 ("none", "Not solved. 4 submissions left.")])  # fmt: skip
def test_feedback_can_be_less(environment: CodeEnvironment, feedback: str, first: str) -> None:
    _, wrong = play(environment, "print(1)", feedback=feedback)
    assert wrong.observation.splitlines()[0] == first
    assert "Test" not in wrong.observation


def test_equal_actions_have_equal_hashes(environment: CodeEnvironment) -> None:
    actions = ("print(1)", "", HALF)
    assert play(environment, *actions) == play(environment, *actions)
    assert play(environment, "print(1)")[1].state_hash != play(environment, "print(1) ")[1].state_hash


def test_only_some_of_many_tests_are_taken(environment: CodeEnvironment) -> None:
    _, first = play(environment, "print(1)", max_tests=3)
    assert first.observation.startswith("0 of 3 tests passed.")


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("print(1)", "print(1)"),
        ("Here:\n```python\nprint(1)\n```\nDone.", "print(1)\n"),
        ("```\nprint(1)\n```", "print(1)\n"),
        ("```py\na\n```\nor\n```python\nb\n```", "b\n"),
        ("cut off:\n```python\na\n```\n```python\nprint(1)", "print(1)"),
    ],
)
def test_programs_are_found_in_fenced_blocks(text: str, program: str) -> None:
    assert unfenced(text) == program


@pytest.mark.parametrize(
    ("output", "expected", "is_right"),
    [
        ("1 2\n3\n", "1 2\n3", True),
        ("1 2 \n3\n\n", "1 2\n3\n", True),
        ("1 2 3", "1 2\n3", False),
        ("1  2", "1 2", True),
        ("0.333333331", "0.333333333", True),
        ("0.34", "0.333", False),
        ("1", "1.0", True),
        ("1.0", "1", False),
        ("yes", "Yes", False),
        ("nan", "nan.", False),
        ("", "", True),
    ],
)
def test_outputs_are_compared_line_by_line(output: str, expected: str, is_right: bool) -> None:
    assert is_expected(output, expected) is is_right


@pytest.mark.parametrize(
    ("result", "expected", "is_right"),
    [("[1, 2]", "[1, 2]", True), ("3", "[3]", True), ("[3]", "3", False), ("true", "1", False),
     ("0.1", "0.10000000001", True), ('{"a": [1]}', '{"a": [1]}', True), ("2", "2.0", True), ('"2"', "2", False)],
)  # fmt: skip
def test_results_are_compared_as_values(result: str, expected: str, is_right: bool) -> None:
    assert is_expected_result(result, expected) is is_right


STDIN_TESTS = [{"input": "1 2\n", "output": "3\n"}]
ROWS = {
    "primeintellect": {
        "problem": "Add.",
        "tests": json.dumps([{"type": "stdin_stdout", "fn_name": None, "input": "1 2\n", "output": "3\n"}]),
        "solutions": ["```python\nprint(sum(map(int, input().split())))\n```"],
    },
    "taco": {"problem": "Add.", "tests": json.dumps({"inputs": ["1 2"], "outputs": ["3"]})},
    "taco, lines": {"problem": "Add.", "tests": {"inputs": [["1 2"]], "outputs": [["3"]]}},
    "codeforces": {"problem": "Add.", "tests": STDIN_TESTS},
    "python literal": {"problem": "Add.", "tests": repr(STDIN_TESTS)},
    "livecodebench": {
        "problem": "Add.",
        "tests": json.dumps([{"input": "1 2", "output": "3", "testtype": "stdin", "metadata": {"func_name": None}}]),
        "starter_code": "",
    },
}
CALLS = {
    "livecodebench": {
        "problem": "Add all.",
        "tests": json.dumps(
            [{"input": "[1, 2]\n3", "output": "6", "testtype": "functional", "metadata": {"func_name": "add"}}]
        ),
        "starter_code": "class Solution:\n    def add(self, items, last):\n",
    },
    "livecodebench, row": {
        "problem": "Add all.",
        "tests": [{"input": "[1, 2]\n3", "output": "6", "testtype": "functional"}],
        "metadata": json.dumps({"func_name": "add"}),
    },
    "taco": {"problem": "Add all.", "tests": {"fn_name": "add", "inputs": [[[1, 2], 3]], "outputs": [[6]]}},
    "primeintellect": {
        "problem": "Add all.",
        "tests": [{"type": "function_call", "fn_name": "add", "input": [[1, 2], 3], "output": [6]}],
    },
}


@pytest.mark.parametrize("name", list(ROWS))
def test_rows_of_every_part_of_deepcoder_are_read(name: str) -> None:
    problem = problem_from_row(ROWS[name])
    (test,) = problem.tests
    assert (problem.statement, problem.function, test.is_public) == ("Add.", "", False)
    assert (test.case.stdin.strip(), test.expected.strip()) == ("1 2", "3")


@pytest.mark.parametrize("name", list(CALLS))
def test_calls_of_every_part_of_deepcoder_are_read(name: str) -> None:
    problem = problem_from_row(CALLS[name])
    (test,) = problem.tests
    assert (problem.function, json.loads(test.case.arguments)) == ("add", [[1, 2], 3])
    assert is_expected_result("6", test.expected)


@pytest.mark.parametrize(
    "row",
    [{}, {"problem": " ", "tests": STDIN_TESTS}, {"problem": "Add.", "tests": []}, {"problem": "Add.", "tests": "x("},
     {"problem": "Add.", "tests": {"inputs": ["1"], "outputs": []}}, {"problem": "Add.", "tests": [{"input": "1"}]},
     {"problem": "Add.", "tests": [1]}, {"problem": "Add.", "tests": None}],
)  # fmt: skip
def test_what_is_no_problem_is_refused(row: dict[str, object]) -> None:
    with pytest.raises(BadProblemError):
        problem_from_row(row)


@pytest.fixture
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a user's problems, which the environment serves."""
    folder = tmp_path / "problems"
    folder.mkdir()
    rows = [*ROWS.values(), {"problem": "no tests"}, *CALLS.values()]
    (folder / "train-part.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows) + "{broken\n\n")
    (folder / "test.jsonl").write_text(json.dumps(ROWS["taco"]) + "\n")
    monkeypatch.setenv(DATA_VARIABLE, str(folder))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(CodeEnvironment, "spec", CodeEnvironment.spec)
    return folder


def test_a_users_files_take_the_place_of_the_bundled_problems(
    environment: CodeEnvironment, own_data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bundled = CodeEnvironment.spec
    with caplog.at_level("INFO"):
        CodeEnvironment.warm_up()
    assert CodeEnvironment.spec.splits == ("train", "test")
    assert not CodeEnvironment.spec.has_oracle
    assert CodeEnvironment.spec.data_hash != bundled.data_hash
    assert CodeEnvironment.num_tasks("train") == len(ROWS) + len(CALLS)
    assert caplog.text.count("row left out") == 2
    start, won = play(environment, "print(3)", task_id="data/train/000000")
    assert start.observation.startswith("Add.\n\nAnswer with a whole Python 3 program that reads stdin")
    assert won.success
    solution = "class Solution:\n    def add(self, items, last):\n        return sum(items) + last"
    start, won = play(environment, solution, task_id="data/train/000006")
    assert "Begin with:\nclass Solution:" in start.observation
    assert "that defines add" in start.observation
    assert won.success


def test_the_index_is_kept_and_made_anew_when_a_file_changes(own_data: Path, tmp_path: Path) -> None:
    first = problem_set()
    cache = tmp_path / "cache" / "code"
    (index,) = cache.iterdir()
    with (own_data / "test.jsonl").open("a") as file:
        file.write(json.dumps(ROWS["codeforces"]) + "\n")
    code.problem_set.__globals__["_problem_set"].cache_clear()
    second = problem_set()
    assert len(second.by_split["test"]) == 2
    assert second.data_hash != first.data_hash
    assert len(list(cache.iterdir())) == 2
    index.unlink()


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_path_without_problems_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / name))
    with pytest.raises(EnvironmentBrokenError, match=f"{DATA_VARIABLE} names .*{name}"):
        CodeEnvironment.warm_up()


def test_where_programs_cannot_be_shut_in_it_refuses_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = isolation().layers
    leaky = Isolation(layers=layers, missing={"landlock": "not in this kernel"}, open_doors=("files", "network"))
    monkeypatch.setattr(code, "isolation", lambda: leaky)
    monkeypatch.setattr(CodeEnvironment, "spec", CodeEnvironment.spec)
    monkeypatch.delenv(INSECURE_VARIABLE, raising=False)
    with pytest.raises(EnvironmentBrokenError, match=r"files, network .* --insecure-sandbox"):
        CodeEnvironment.warm_up()
    with pytest.raises(EnvironmentBrokenError, match="insecure_sandbox"):
        CodeEnvironment().reset(TASK, 0, {})
    monkeypatch.setenv(INSECURE_VARIABLE, "1")
    CodeEnvironment.warm_up()
    assert play(CodeEnvironment(), "print(1)")[1].action_valid


def test_the_servers_switch_reaches_the_workers() -> None:
    async def main(*, is_insecure: bool) -> str:
        probe = "tests.env_server.odd_environments:VariableEnvironment"
        async with loopback(probe, insecure_sandbox=is_insecure) as client:
            player = await client.start("variable")
            return player.first.extras[INSECURE_VARIABLE]

    assert asyncio.run(main(is_insecure=True)) == "1"
    assert asyncio.run(main(is_insecure=False)) == ""


def _attacks(secret: Path, port: int, worker_pid: int) -> dict[str, str]:
    return {
        "fork bomb": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        continue",
        "endless loop": "while True: pass",
        "10 GB": "x = bytearray(10 * 2**30)\nprint(input())",
        "file outside": f"print(open({str(secret)!r}).read())",
        "socket": f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)\nprint('reached')",
        "parent": "import os\n"
        f"for pid in (os.getppid(), {worker_pid}, {os.getpid()}, 0, -1):\n"
        "    try:\n        os.kill(pid, 9)\n    except OSError:\n        continue\n",
        "hidden tests": f"print(open({str(DATA_FILE)!r}).read())",
    }


@pytest.mark.usefixtures("adopts_orphans")
def test_every_attack_ends_as_a_failed_test_and_the_server_is_unharmed(tmp_path: Path) -> None:
    if not isolation().is_whole:
        pytest.skip(f"the attack tests of the code environment did not run: {isolation().explain()}")
    secret = tmp_path / "secret"
    secret.write_text("the answers")
    secret.chmod(0o666)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as ear:
            ear.setblocking(False)
            async with loopback("code") as client:
                (worker,) = client.server.pool.workers
                neighbour = await client.start("code", task_id="own/train/inversions")
                for name, program in _attacks(secret, ear.getsockname()[1], worker.pid).items():
                    player = await client.start("code", task_id=TASK, knobs={"cpu_s": 1, "max_submissions": 1})
                    result = await player.step(program)
                    assert result.status == environment_pb2.EPISODE_STATUS_TERMINATED, (name, result)
                    assert (result.success, result.score) == (False, 0.0), (name, result)
                    assert "0 of 12 tests passed." in result.observation, (name, result)
                    assert "the answers" not in result.observation, (name, result)
                    with pytest.raises(BlockingIOError):
                        ear.accept()
                later = await neighbour.step("print(1)")
                assert (later.status, later.rebuilt) == (RUNNING, False)
                assert client.server.pool.workers == [worker]
                assert client.metrics.snapshot()["server/worker/num_restarts"] == 0
        assert secret.read_text() == "the answers"
        assert not sandbox_processes()

    asyncio.run(main())
