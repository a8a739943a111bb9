"""Runs the checks and tells what came of each."""

from __future__ import annotations

import asyncio
import enum
import shlex
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from clients.config import EnvClientConfig
from clients.conformance import play_checks, process_checks
from clients.conformance.server import CheckedServer, checked_server
from clients.conformance.subject import CheckFailedError, CheckSkippedError, Subject, SuiteOptions
from clients.environment import EnvClient
from longturn.errors import ConfigError, LongturnError
from longturn.nearest import nearest_hint
from longturn.records import Task

Check = Callable[[Subject], Awaitable[str]]
"""Returns what was done; raises CheckFailedError or CheckSkippedError."""

CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        play_checks.tasks_are_listed,
        play_checks.seeds_fix_episodes,
        process_checks.hashes_hold_across_processes,
        process_checks.replay_reproduces_episodes,
        play_checks.oracle_wins,
        play_checks.noop_never_wins,
        play_checks.random_stays_under_ceiling,
        play_checks.bad_actions_are_steps,
        play_checks.turn_limit_ends_episodes,
        play_checks.rewards_sum_to_score,
        process_checks.resets_do_not_grow,
        process_checks.no_child_is_left,
    )
}


class Verdict(enum.Enum):
    """What came of a check."""

    PASS = "PASS"
    FAIL = "FAIL"
    SKIP = "SKIP"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """One line of the suite's report."""

    name: str
    verdict: Verdict
    detail: str
    """What was done, or what is wrong and where, or why the check does not apply."""
    reproduce: str = ""
    """Command that runs this check again as it was; empty unless it failed."""

    def to_json(self) -> dict[str, str]:
        """As `--json` prints it."""
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "detail": self.detail,
            "reproduce": self.reproduce,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteReport:
    """What came of all checks."""

    environment: str
    version: str
    data_hash: str
    checks: tuple[CheckReport, ...]

    @property
    def has_passed(self) -> bool:
        """Whether no check failed."""
        return all(report.verdict is not Verdict.FAIL for report in self.checks)


def choose_checks(names: Sequence[str]) -> tuple[str, ...]:
    """The named checks, all if none is named, in the suite's order; ConfigError on an unknown name."""
    for name in names:
        if name not in CHECKS:
            raise ConfigError(f"no check {name!r}{nearest_hint(name, CHECKS)}; checks: {', '.join(CHECKS)}")
    return tuple(name for name in CHECKS if name in names or not names)


def check_environment(
    environment: str,
    options: SuiteOptions,
    *,
    names: Sequence[str] = (),
    on_report: Callable[[CheckReport], None] = lambda report: None,
) -> SuiteReport:
    """Start a server, run the checks one after another, and stop it. ConfigError if the server cannot be started."""
    chosen = choose_checks(names)
    with (
        tempfile.TemporaryDirectory(prefix="longturn-check-") as folder,
        checked_server(environment, Path(folder)) as server,
    ):
        return asyncio.run(run_checks(server, options, chosen, on_report=on_report))


async def run_checks(
    server: CheckedServer,
    options: SuiteOptions,
    names: Sequence[str],
    *,
    on_report: Callable[[CheckReport], None] = lambda report: None,
) -> SuiteReport:
    """Run the named checks against a running server."""
    async with EnvClient(EnvClientConfig(address=server.address, connect_budget_s=10.0)) as envs:
        subject = await _subject(server, envs, options)
        reports: list[CheckReport] = []
        for name in names:
            reports.append(await _run_check(subject, name))
            on_report(reports[-1])
    info = subject.info
    return SuiteReport(environment=info.name, version=info.version, data_hash=info.data_hash, checks=tuple(reports))


async def _subject(server: CheckedServer, envs: EnvClient, options: SuiteOptions) -> Subject:
    (info,) = await envs.list_environments()
    tasks: list[Task] = []
    for split in info.splits:
        listed = await envs.list_tasks(info.name, split, filters=options.filters, limit=options.tasks_per_split)
        tasks += [Task(environment=info.name, task_id=item.task.task_id, knobs=options.knobs) for item in listed]
    if not tasks:
        raise ConfigError(f"environment {info.name} lists no task; with --filter, choose one that some task has")
    return Subject(server=server, envs=envs, info=info, tasks=tasks, options=options)


async def _run_check(subject: Subject, name: str) -> CheckReport:
    try:
        detail = await CHECKS[name](subject)
    except CheckSkippedError as skipped:
        return CheckReport(name=name, verdict=Verdict.SKIP, detail=str(skipped))
    except CheckFailedError as failed:
        return _failed(subject, name, str(failed))
    except LongturnError as error:
        return _failed(subject, name, f"{error.reason}: {error}")
    return CheckReport(name=name, verdict=Verdict.PASS, detail=detail)


def _failed(subject: Subject, name: str, detail: str) -> CheckReport:
    reproduce = reproducing_command(subject.server.environment, subject.options, name)
    return CheckReport(name=name, verdict=Verdict.FAIL, detail=detail, reproduce=reproduce)


def reproducing_command(environment: str, options: SuiteOptions, name: str) -> str:
    """The command line that runs one check as it was run."""
    defaults = SuiteOptions()
    words = ["longturn", "envs", "check", environment, "--only", name]
    for option, value in options.flags().items():
        if value != defaults.flags()[option]:
            words += [option, str(value)]
    words += [word for knob, value in options.knobs.items() for word in ("--knob", f"{knob}={_text(value)}")]
    words += [word for filter_, value in options.filters.items() for word in ("--filter", f"{filter_}={value}")]
    return shlex.join(words)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
