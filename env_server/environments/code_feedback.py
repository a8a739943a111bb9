"""What whoever solves a problem is shown of its tests."""

import builtins
from dataclasses import dataclass

from env_server.environments.code_judge import is_expected, is_expected_result
from env_server.environments.code_problems import ProblemTest
from env_server.sandbox.records import Outcome, Verdict

_SHOWN_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class TestResult:
    """A test and what a program made of it."""

    __test__ = False  # the name is not meant for pytest

    test: ProblemTest
    outcome: Outcome

    @property
    def has_passed(self) -> bool:
        """Whether the program ended and its output is the expected one."""
        if self.outcome.verdict is not Verdict.FINISHED:
            return False
        if not self.test.case.function:
            return is_expected(self.outcome.output, self.test.expected)
        # Without a result the program ended itself before the function returned.
        return bool(self.outcome.output) and is_expected_result(self.outcome.output, self.test.expected)

    def describe(self, number: int, *, is_shown: bool) -> str:
        """What went wrong. Of a hidden test only that, not even the text of an error, which may hold its input."""
        lines = [f"Test {number}: {self._what(is_shown=is_shown)}."]
        if is_shown:
            case = self.test.case
            lines += [
                f"Input: {_short(case.arguments if case.function else case.stdin)}",
                f"Expected: {_short(self.test.expected)}",
            ]
            if self.outcome.verdict is Verdict.FINISHED:
                lines.append(f"Got: {_short(self.outcome.output)}")
        return "\n".join(lines)

    def _what(self, *, is_shown: bool) -> str:
        error = self.outcome.error
        match self.outcome.verdict:
            case Verdict.FINISHED:
                return "wrong answer"
            case Verdict.ERROR:
                return f"error: {error if is_shown else _error_kind(error)}"
            case Verdict.KILLED:
                return f"the program died of {error}"
            case Verdict.CPU_LIMIT:
                return "the CPU time limit was exceeded"
            case Verdict.TIME_LIMIT:
                return "the program did not end in time"
            case Verdict.NOT_RUN:
                return "not run, no time was left"


def example(number: int, test: ProblemTest) -> str:
    """A public test as it is shown beforehand."""
    if test.case.function:
        arguments = test.case.arguments[1:-1]
        return f"Example {number}: {test.case.function}({arguments}) returns {test.expected}"
    return f"Example {number}, input:\n{test.case.stdin.rstrip()}\nOutput:\n{test.expected.rstrip()}"


def _error_kind(error: str) -> str:
    """The kind of an error and the program's line, without its message."""
    kind = error.partition(":")[0].partition(" ")[0]
    line = error.rpartition(" (line ")[2]
    has_line = error.endswith(")") and line[:-1].isdecimal()
    # Only names that are known: a program can name its own errors, and so say what it saw.
    name = kind if isinstance(getattr(builtins, kind, None), type) else "the program ended with an error"
    return f"{name} (line {line}" if has_line else name


def _short(text: str) -> str:
    text = text.rstrip()
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]} ... ({len(text)} characters)"


def counted(count: int, noun: str) -> str:
    """A number and its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
