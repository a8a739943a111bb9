"""Inside: `python -m env_server.sandbox.launcher`, an order on stdin, a report on stdout.

Three processes in a row. The launcher belongs to the worker's process group and dies with it; it moves to new
namespaces and waits. The keeper, first in its process namespace, shuts itself in and forks one runner per case. The
kernel kills each when the one before it dies, and everything in the namespace with the keeper.
"""

from __future__ import annotations

import errno
import os
import select
import sys
import time

from env_server.sandbox import kernel, landlock, namespaces, seccomp
from env_server.sandbox.job import (
    CPU_LIMIT,
    ERROR,
    FINISHED,
    KILLED,
    NOT_RUN,
    TIME_LIMIT,
    Case,
    Job,
    Result,
    pack_report,
)
from env_server.sandbox.runner import Doors, run_case

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

DEVICES = ("/dev/null", "/dev/urandom")
# Imported once, before the doors close, where the program speaks of them; some need libraries from outside.
_COMMON = ("bisect", "collections", "copy", "datetime", "decimal", "fractions", "functools", "hashlib", "heapq",
           "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "threading", "typing",
           "zlib")  # fmt: skip
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_SHOWN_BYTES = 400
_SIGKILL, _SIGXCPU = 9, 24  # the module signal takes longer to import than all that is done here


def main() -> None:
    """Answer one order."""
    kernel.die_with_parent()
    job = Job(sys.stdin.buffer.read())
    for name in _COMMON:
        if name in job.program:
            __import__(name)
    number, missing = os.getpid(), dict[str, str]()
    try:
        has_namespaces = _has("namespaces", namespaces.enter, missing, job)
        keeper = os.fork()
        if keeper:
            _, status = os.waitpid(keeper, 0)
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
        report = _keep(job, number, missing, has_namespaces=has_namespaces)
        sys.stdout.buffer.write(report)
        sys.stdout.buffer.flush()
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _has(name: str, layer: Callable[[], None], missing: dict[str, str], job: Job) -> bool:
    """Put a layer on if the order asks for it; where it cannot be had, raise if the order is strict, else note why."""
    if name not in job.layers:
        return False
    try:
        layer()
    except OSError as error:
        if job.is_strict:
            raise OSError(error.errno, f"{name}: {error}") from error
        missing[name] = str(error)
        return False
    return True


def _keep(job: Job, number: int, missing: dict[str, str], *, has_namespaces: bool) -> bytes:
    """Shut this process in, then run the cases one after another."""
    os.setsid()
    kernel.die_with_parent()
    folders = _library_folders()
    is_alone = has_namespaces and _has("namespaces", lambda: namespaces.replace_root(folders, DEVICES), missing, job)
    # Another user could not reach a library that lies in a closed folder, such as root's home.
    if is_alone or all(map(_is_open_to_all, folders)):
        namespaces.become_nobody(number)
    kernel.drop_capabilities()
    kernel.die_with_parent()  # again: the change of user undid it
    kernel.prctl("prctl(PR_SET_DUMPABLE)", kernel.PR_SET_DUMPABLE, 0)
    kernel.prctl("prctl(PR_SET_NO_NEW_PRIVS)", kernel.PR_SET_NO_NEW_PRIVS, 1)
    has_landlock = _has(
        "landlock", lambda: landlock.restrict_files(_library_entries(folders), folders, DEVICES), missing, job
    )
    has_seccomp = _has("seccomp", _try_seccomp, missing, job)
    sys.path[:] = [path for path in sys.path if path.startswith(tuple(folders))]
    doors = Doors(scopes_signals=has_landlock, filters_calls=has_seccomp)
    return pack_report(missing, _run_all(job, doors, owns_all=has_namespaces))


def _try_seccomp() -> None:
    """The filter binds whoever puts it on, and the keeper must go on: try it in a child."""
    child = os.fork()
    if not child:
        try:
            seccomp.forbid_calls()
        except OSError as error:
            os._exit(error.errno or errno.ENOSYS)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code:
        raise OSError(abs(code), os.strerror(code) if code > 0 else f"the trial was killed by signal {-code}")


def _library_folders() -> list[str]:
    """The standard library: its modules, and its compiled ones where they lie elsewhere."""
    library = os.path.dirname(os.path.realpath(os.__file__))
    compiled = [os.path.realpath(path) for path in sys.path if os.path.basename(path) == "lib-dynload"]
    return [library, *(path for path in compiled if not path.startswith(library + os.sep))]


def _library_entries(folders: list[str]) -> list[str]:
    """What may be read of them: everything but what was installed, which may hold the answers."""
    return [entry.path for folder in folders for entry in os.scandir(folder) if entry.name not in _INSTALLED]


def _is_open_to_all(folder: str) -> bool:
    """Whether any user can reach it."""
    while folder != "/":
        if not os.stat(folder).st_mode & 0o001:
            return False
        folder = os.path.dirname(folder)
    return True


def _run_all(job: Job, doors: Doors, *, owns_all: bool) -> list[Result]:
    deadline_s = time.monotonic() + job.limits.total_s
    results: list[Result] = []
    is_over = False
    for case in job.cases:
        left_s = deadline_s - time.monotonic()
        is_over = is_over or left_s <= 0
        if is_over:
            results.append(Result(NOT_RUN))
            continue
        results.append(_run(job, case, doors, wall_s=min(left_s, job.limits.wall_s), owns_all=owns_all))
        is_over = results[-1].verdict in (CPU_LIMIT, TIME_LIMIT)
    return results


def _run(job: Job, case: Case, doors: Doors, *, wall_s: float, owns_all: bool) -> Result:
    """Fork a runner, wait for it, and clear away whatever it left."""
    files = [os.memfd_create(name) for name in ("stdin", "stdout", "stderr", "result")]
    stdin, stdout, stderr, result = files
    with open(stdin, "wb", closefd=False) as file:
        file.write(case.stdin.encode())
    os.lseek(stdin, 0, os.SEEK_SET)
    runner = os.fork()
    if not runner:
        run_case(job.program, case, job.limits, doors, files)
    is_late = not _ends_within(runner, wall_s)
    if is_late:
        os.kill(runner, _SIGKILL)
    _, status, usage = os.wait4(runner, 0)
    if owns_all:
        _clear()
    verdict = _verdict(status, is_late=is_late, has_spent=usage.ru_utime + usage.ru_stime > job.limits.cpu_s)
    output = _content(result if case.function else stdout, job.limits.output_bytes)
    error = _last_line(stderr) if verdict == ERROR else b""
    if verdict == KILLED:
        error = b"%d" % -os.waitstatus_to_exitcode(status)
    for file in files:
        os.close(file)
    return Result(verdict, output, error)


def _ends_within(process: int, limit_s: float) -> bool:
    handle = os.pidfd_open(process)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    events = poll.poll(limit_s * 1000)
    os.close(handle)
    return bool(events)


def _clear() -> None:
    """Kill everybody else in the process namespace."""
    try:
        os.kill(-1, _SIGKILL)
        while True:
            os.waitpid(-1, 0)
    except (ProcessLookupError, ChildProcessError):
        return


def _verdict(status: int, *, is_late: bool, has_spent: bool) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code == -_SIGXCPU or (code < 0 and has_spent):
        return CPU_LIMIT
    if is_late:
        return TIME_LIMIT
    if code < 0:
        return KILLED
    return ERROR if code else FINISHED


def _last_line(file: int) -> bytes:
    size = os.lseek(file, 0, os.SEEK_END)
    os.lseek(file, max(0, size - _SHOWN_BYTES), os.SEEK_SET)
    lines = [line.strip() for line in os.read(file, _SHOWN_BYTES).splitlines() if line.strip()]
    return lines[-1] if lines else b"an exit status other than 0"


def _content(file: int, limit: int) -> bytes:
    os.lseek(file, 0, os.SEEK_SET)
    with open(file, "rb", closefd=False) as stream:
        return stream.read(limit)


if __name__ == "__main__":
    main()
