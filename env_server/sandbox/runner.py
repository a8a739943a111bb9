"""The innermost process: puts the limits on itself and becomes the program."""

from __future__ import annotations

import atexit
import builtins
import os
import resource
import sys

from env_server.sandbox import kernel, landlock, seccomp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Any, Literal, NoReturn, TextIO

    from env_server.sandbox.job import Case, Limits

PROGRAM = "program.py"
_RESULT_FD = 3
_MAX_ERROR_CHARS = 300
# What solutions of the function-call form use without importing it.
_PRELUDE = "from typing import *\nimport bisect, collections, functools, heapq, itertools, math, re, string\n"


class Doors:
    """What the runner closes behind itself."""

    def __init__(self, *, scopes_signals: bool, filters_calls: bool) -> None:
        self.scopes_signals = scopes_signals
        self.filters_calls = filters_calls


def run_case(program: str, case: Case, limits: Limits, doors: Doors, files: Sequence[int]) -> NoReturn:
    """Run the program on the case with `files` as stdin, stdout, stderr and result; ends the process."""
    status = 1
    try:
        _shut_in(limits, doors, files)
        status = _run(program, case)
    except SystemExit as stop:
        status = _exit_status(stop.code)
    except BaseException as error:  # noqa: BLE001 - whatever a stranger's program raises is its outcome
        _tell(error)
    os._exit(status if _is_flushed() else 1)


def _shut_in(limits: Limits, doors: Doors, files: Sequence[int]) -> None:
    kernel.die_with_parent()
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(_RESULT_FD + 1, 65_536)
    sys.stdin = _text_stream(0, "r")
    sys.stdout = _text_stream(1, "w")
    sys.stderr = _text_stream(2, "w")
    sys.argv = [PROGRAM]
    os.environ.clear()
    if doors.scopes_signals:
        landlock.restrict_signals()
    _limit(limits)
    if doors.filters_calls:
        seccomp.forbid_calls()


def _text_stream(number: int, mode: Literal["r", "w"]) -> TextIO:
    return open(number, mode, encoding="utf-8", errors="replace", closefd=False)


def _limit(limits: Limits) -> None:
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, limits.cpu_s, limits.cpu_s + 1),
        (resource.RLIMIT_AS, limits.memory_bytes, limits.memory_bytes),
        (resource.RLIMIT_FSIZE, limits.output_bytes, limits.output_bytes),
        (resource.RLIMIT_NPROC, limits.num_processes, limits.num_processes),
        (resource.RLIMIT_NOFILE, limits.num_files, limits.num_files),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        resource.setrlimit(kind, (soft, hard))


def _run(program: str, case: Case) -> int:
    names: dict[str, Any] = {"__name__": "solution" if case.function else "__main__", "__builtins__": builtins}
    if case.function:
        exec(_PRELUDE, names)
    exec(compile(program, PROGRAM, "exec", dont_inherit=True), names)
    if case.function:
        _call(_find(names, case.function), case.arguments)
    # What an interpreter does at its end: many programs compute in a thread, or print at exit.
    if "threading" in sys.modules:
        threading = sys.modules["threading"]
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]  # the interpreter is left without its own end
    return 0


def _call(function: Any, arguments: str) -> None:
    import json

    result = function(*json.loads(arguments))
    with open(_RESULT_FD, "w", encoding="utf-8", closefd=False) as file:
        json.dump(result, file)


def _find(names: dict[str, Any], function: str) -> Any:
    if function in names:
        return names[function]
    solution = names.get("Solution")
    if solution is not None and hasattr(solution, function):
        return getattr(solution(), function)
    raise NameError(f"the program defines no function {function}")


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{str(code)[:_MAX_ERROR_CHARS]}\n")
    return 1


def _tell(error: BaseException) -> None:
    """One line: kind, message, and the line of the program."""
    line = error.lineno if isinstance(error, SyntaxError) else _line_of(error.__traceback__)
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    where = f" (line {line})" if line else ""
    text = f"{type(error).__name__}: {message}".rstrip(": ").replace("\n", " ")[:_MAX_ERROR_CHARS] + where
    os.write(2, f"\n{text}\n".encode("utf-8", "replace"))


def _line_of(traceback: TracebackType | None) -> int | None:
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == PROGRAM:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _is_flushed() -> bool:
    try:
        sys.stderr.flush()
        sys.stdout.flush()
    except (OSError, ValueError):  # too much of it, or closed by the program
        return False
    return True
