"""What honest programs find in the sandbox."""

from __future__ import annotations

import json

import pytest

from env_server.sandbox.isolation import isolation
from env_server.sandbox.records import Case, Limits, Verdict
from env_server.sandbox.sandbox import Sandbox


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    """The sandbox that the code environment would use here."""
    return Sandbox(layers=isolation().layers, limits=Limits(cpu_s=2))


def outputs(sandbox: Sandbox, program: str, *stdins: str) -> list[str]:
    outcomes = sandbox.run(program, tuple(Case(stdin=stdin) for stdin in stdins))
    assert all(outcome.verdict is Verdict.FINISHED for outcome in outcomes), outcomes
    return [outcome.output for outcome in outcomes]


def test_each_case_gets_its_input_and_a_fresh_state(sandbox: Sandbox) -> None:
    program = "import math\nmath.seen = getattr(math, 'seen', 0) + 1\nprint(int(input()) + math.seen)"
    assert outputs(sandbox, program, "1\n", "2\n", "30") == ["2\n", "3\n", "31\n"]


@pytest.mark.parametrize(
    "program",
    [
        "print(input())",
        "import sys\nsys.stdout.write(sys.stdin.readline())",
        "import sys\nfor line in sys.stdin: print(line, end='')",
        "import os\nos.write(1, os.read(0, 100))",
        "print(open(0).read(), end='')",
        "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())",
        "import threading\nthreading.Thread(target=lambda: print(input())).start()",
        "import atexit\natexit.register(lambda: print('grüße'))",
        "def main():\n    print(input())\nif __name__ == '__main__':\n    main()\n    raise SystemExit",
        "import sys\nprint(input())\nsys.exit(0)",
    ],
)
def test_every_common_way_to_read_and_print_works(sandbox: Sandbox, program: str) -> None:
    assert outputs(sandbox, program, "grüße\n") == ["grüße\n"]


def test_the_standard_library_is_there(sandbox: Sandbox) -> None:
    names = (
        "array bisect calendar cmath collections copy datetime decimal dataclasses enum fractions functools hashlib "
        "heapq io itertools json math operator queue random re statistics string struct textwrap time typing"
    )
    program = f"import importlib\nfor name in {names.split()!r}: importlib.import_module(name)\nprint('all')"
    assert outputs(sandbox, program, "") == ["all\n"]


def test_sets_have_the_same_order_in_every_run(sandbox: Sandbox) -> None:
    program = "print({str(number) for number in range(50)})"
    assert len({*outputs(sandbox, program, ""), *outputs(sandbox, program, "")}) == 1


def test_functions_and_methods_are_called(sandbox: Sandbox) -> None:
    calls = tuple(Case(function="total", arguments=json.dumps([numbers])) for numbers in ([1, 2], []))
    plain = sandbox.run("def total(numbers): return sum(numbers)\nprint('noise')", calls)
    method = sandbox.run(
        "class Solution:\n    def total(self, numbers: List[int]) -> int:\n        return math.fsum(numbers)", calls
    )
    assert [outcome.output for outcome in plain] == ["3", "0"]
    assert [outcome.output for outcome in method] == ["3.0", "0.0"]
    (missing,) = sandbox.run("x = 1", calls[:1])
    assert missing.error == "NameError: the program defines no function total"


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("x = 1\nprint(x / 0)", "ZeroDivisionError: division by zero (line 2)"),
        ("def f(:", "SyntaxError: invalid syntax (line 1)"),
        ("raise SystemExit('wrong input')", "wrong input"),
        ("import sys\nprint('hint', file=sys.stderr)\nsys.exit(3)", "hint"),
        ("def f(): return f()\nf()", "RecursionError: maximum recursion depth exceeded (line 1)"),
        ("raise ValueError", "ValueError (line 1)"),
        ("raise ValueError('a\\nb')", "ValueError: a b (line 1)"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt (line 1)"),
    ],
)
def test_an_error_is_one_line_with_the_programs_own_line(sandbox: Sandbox, program: str, error: str) -> None:
    (outcome,) = sandbox.run(program, (Case(),))
    assert (outcome.verdict, outcome.error) == (Verdict.ERROR, error)


def test_odd_texts_arrive(sandbox: Sandbox) -> None:
    assert outputs(sandbox, "print(ascii(input()))", "\ud800 \x00é\n") == ["'? \\x00\\xe9'\n"]
    (outcome,) = sandbox.run("import os\nos.write(1, b'\\xff\\n')", (Case(),))
    assert outcome.output == "�\n"


def test_many_cases_with_large_texts_come_back_whole(sandbox: Sandbox) -> None:
    text = "x" * 300_000
    assert outputs(sandbox, "print(input(), end='')", *[text] * 5) == [text] * 5
