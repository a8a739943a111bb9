"""Programming problems: those of the package, or a user's in DeepCoder's format.

A row is a JSON object with `problem` (the text) and `tests`, and may have `starter_code`, `solutions`, `metadata`.
`tests` is a list of {input, output}, with `fn_name` or `metadata.func_name` where a function is to be called, or an
object {inputs, outputs, fn_name}; either may come as text that holds it. That covers the PrimeIntellect, TACO,
LiveCodeBench and Codeforces parts. The package's own rows add `name`, `kind`, `split` and `num_public`, the number of
tests at the beginning that are shown.
"""

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from env_server.sandbox.records import Case


class BadProblemError(ValueError):
    """A row is no problem; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemTest:
    """One test of a program."""

    case: Case
    expected: str
    """Standard output, or for a call the result as JSON."""
    is_public: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is asked, and how an answer is tested."""

    kind: str
    statement: str
    starter: str
    tests: tuple[ProblemTest, ...]
    solution: str | None

    @property
    def function(self) -> str:
        """The function that the program must define; empty where it reads and prints."""
        return self.tests[0].case.function


def problem_from_row(row: Mapping[str, Any]) -> Problem:
    """Read a row; raise BadProblemError if it has no text or no test."""
    statement = row.get("problem")
    if not isinstance(statement, str) or not statement.strip():
        raise BadProblemError("no text under `problem`")
    num_public = row.get("num_public", 0)
    tests = [_test(item, is_public=index < num_public) for index, item in enumerate(_tests(row.get("tests"), row))]
    if not tests:
        raise BadProblemError("no test under `tests`")
    if len({test.case.function for test in tests}) > 1:
        raise BadProblemError("tests of several functions")
    solutions = row.get("solutions")
    first = solutions[0] if isinstance(solutions, list) and solutions else solutions
    return Problem(
        kind=str(row.get("kind", "function" if tests[0].case.function else "stdin")),
        statement=statement.strip(),
        starter=str(row.get("starter_code") or "").strip(),
        tests=tuple(tests),
        solution=unfenced(first) if isinstance(first, str) and first.strip() else None,
    )


def unfenced(text: str) -> str:
    """The content of the last fenced block of a text, or the text itself where there is none."""
    parts = text.split("```")
    if len(parts) < 3:
        return text
    block = parts[-2] if len(parts) % 2 else parts[-1]  # the last block may have been cut off
    language, newline, rest = block.partition("\n")
    return rest if newline and (not language.strip() or language.strip().isalnum()) else block


def _tests(tests: object, row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    value = _parsed(tests) if isinstance(tests, str) else tests
    function = _function(row.get("metadata"))
    if isinstance(value, Mapping):
        inputs, outputs = value.get("inputs"), value.get("outputs")
        if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
            raise BadProblemError("`tests` has not as many `inputs` as `outputs`")
        function = value.get("fn_name") or function
        return [{"input": i, "output": o, "fn_name": function} for i, o in zip(inputs, outputs, strict=True)]
    if isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(item, Mapping) for item in value):
        return [{"fn_name": _function(item.get("metadata")) or function, **_set(item)} for item in value]
    raise BadProblemError("`tests` is neither a list of objects nor an object of lists")


def _set(item: Mapping[str, Any]) -> dict[str, Any]:
    """A test without fields that are None; a test that says it reads stdin calls no function."""
    given = {name: value for name, value in item.items() if value is not None}
    kind = given.get("testtype", given.get("type", ""))
    return given | ({"fn_name": ""} if kind in ("stdin", "stdin_stdout") else {})


def _function(metadata: object) -> str:
    value = _parsed(metadata) if isinstance(metadata, str) and metadata.strip() else metadata
    name = value.get("func_name") if isinstance(value, Mapping) else None
    return name if isinstance(name, str) else ""


def _test(item: Mapping[str, Any], *, is_public: bool) -> ProblemTest:
    if "input" not in item or "output" not in item:
        raise BadProblemError("a test without `input` or `output`")
    function = str(item.get("fn_name") or "")
    if not function:
        case = Case(stdin=_text(item["input"]))
        return ProblemTest(case=case, expected=_text(item["output"]), is_public=is_public)
    is_by_line = item.get("testtype") == "functional"
    case = Case(function=function, arguments=_arguments(item["input"], is_by_line=is_by_line))
    return ProblemTest(case=case, expected=_json(item["output"]), is_public=is_public)


def _text(value: object) -> str:
    """Some collections give the lines one by one."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _arguments(value: object, *, is_by_line: bool) -> str:
    """The JSON list of a call's arguments, which stand in a list, or each in a line of a text."""
    if isinstance(value, str):
        value = [_loaded(line) for line in value.splitlines() if line.strip()] if is_by_line else _loaded(value)
    return json.dumps(value if isinstance(value, list) else [value])


def _json(value: object) -> str:
    return json.dumps(_loaded(value) if isinstance(value, str) else value)


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text)  # one part of the collection writes Python lists
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise BadProblemError("`tests` or `metadata` is neither JSON nor a Python literal") from error
