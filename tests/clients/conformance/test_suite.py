"""The conformance suite passes what keeps its promises, and fails each promise that `faulty` breaks."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from clients.conformance.pytest_suite import ConformanceTests
from clients.conformance.server import CheckedServer, checked_server
from clients.conformance.subject import SuiteOptions
from clients.conformance.suite import CHECKS, CheckReport, Verdict, run_checks
from longturn.records import KnobValue
from tests.clients.daemons import FAULTY, ROOT

SHORT: Mapping[str, KnobValue] = {"horizon": 10, "observation_bytes": 100}
KILLING = ("hashes_hold_across_processes", "replay_reproduces_episodes")
"""Checks that kill workers, which takes seconds."""
LEAVING = "no_child_is_left"
"""The check that starts servers of its own."""
CHEAP = tuple(name for name in CHECKS if name not in (*KILLING, LEAVING))


class TestEcho(ConformanceTests):
    environment = "echo"
    options = SuiteOptions(knobs=SHORT, tasks_per_split=1, num_resets=100, seconds=3.0)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CheckedServer]:
    """One server for all faults; the knobs choose which."""
    with checked_server(FAULTY, tmp_path_factory.mktemp("faulty")) as server:
        yield server


def _check(server: CheckedServer, names: tuple[str, ...], **knobs: KnobValue) -> dict[str, CheckReport]:
    options = SuiteOptions(knobs={**SHORT, **knobs}, tasks_per_split=1, num_resets=64, seconds=30.0)
    return {report.name: report for report in asyncio.run(run_checks(server, options, names)).checks}


def _failed(reports: Mapping[str, CheckReport]) -> set[str]:
    return {name for name, report in reports.items() if report.verdict is Verdict.FAIL}


def test_without_a_fault_faulty_passes(faulty: CheckedServer) -> None:
    assert _failed(_check(faulty, (*CHEAP, *KILLING))) == set()


@pytest.mark.parametrize(
    ("knobs", "names", "expected"),
    [
        ({"is_drifting": True}, (*CHEAP, *KILLING), {"seeds_fix_episodes", *KILLING}),
        ({"is_hash_constant": True}, (*CHEAP, KILLING[0]), {KILLING[0]}),
        ({"is_crowded": True}, CHEAP, {"seeds_fix_episodes"}),
        ({"is_oracle_wrong": True}, CHEAP, {"oracle_wins"}),
        ({"is_generous": True}, CHEAP, {"noop_never_wins", "random_stays_under_ceiling"}),
        ({"is_generous": True, "horizon": 3}, CHEAP, {"noop_never_wins", "random_stays_under_ceiling",
                                                      "turn_limit_ends_episodes"}),
        ({"is_fussy": True}, CHEAP, {"noop_never_wins", "bad_actions_are_steps", "turn_limit_ends_episodes"}),
        ({"is_score_off": True}, CHEAP, {"rewards_sum_to_score"}),
        ({"leaked_kib": 2048}, CHEAP, {"resets_do_not_grow"}),
        ({"nan_at_turn": 4}, CHEAP, set(CHEAP) - {"tasks_are_listed", "resets_do_not_grow"}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_each_fault_fails_the_checks_of_its_promise_and_no_other(
    faulty: CheckedServer, knobs: dict[str, KnobValue], names: tuple[str, ...], expected: set[str]
) -> None:
    reports = _check(faulty, names, **knobs)
    assert _failed(reports) == expected, reports
    for name in expected:
        assert reports[name].detail
        assert shlex.split(reports[name].reproduce)[:5] == ["longturn", "envs", "check", FAULTY, "--only"]


def test_a_process_that_outlives_the_server_is_found(faulty: CheckedServer) -> None:
    (report,) = _check(faulty, (LEAVING,), has_orphan=True).values()
    assert report.verdict is Verdict.FAIL
    assert "sleep 60" in report.detail


def test_an_environment_that_promises_less_is_asked_less(tmp_path: Path) -> None:
    with checked_server("tests.env_server.odd_environments:UnrepeatableEnvironment", tmp_path) as server:
        reports = _check(server, ("seeds_fix_episodes", KILLING[0], "oracle_wins"))
    verdicts = [report.verdict for report in reports.values()]
    assert verdicts == [Verdict.SKIP, Verdict.SKIP, Verdict.PASS]


def test_a_task_listed_twice_is_found(tmp_path: Path) -> None:
    with checked_server("tests.env_server.odd_environments:TwiceListedEnvironment", tmp_path) as server:
        (report,) = _check(server, ("tasks_are_listed",)).values()
    assert report.verdict is Verdict.FAIL
    assert "listed twice" in report.detail


def _run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "longturn", "envs", "check", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90, env=dict(os.environ))


def test_the_command_prints_a_line_per_check_and_its_failure_can_be_repeated() -> None:
    first = _run("faulty", "--only", "oracle_wins", "--only", "tasks_are_listed", "--seed", 3, "--tasks-per-split", 1,
                 "--knob", "is_oracle_wrong=true", "--knob", "horizon=5")  # fmt: skip
    assert first.returncode == 1, first.stderr
    passed, failed = first.stdout.splitlines()
    assert passed.split()[:2] == ["PASS", "tasks_are_listed"]
    assert failed.split()[:2] == ["FAIL", "oracle_wins"]
    assert "task faulty/train/000000 seed 3000 turn 5: the oracle did not win" in failed
    words = shlex.split(failed.partition("reproduce: ")[2])
    again = _run(*words[3:], "--json")
    report = json.loads(again.stdout)
    assert (again.returncode, report["environment"], report["has_passed"]) == (1, "faulty", False)
    assert report["checks"][0]["detail"] in failed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("echo", "--only", "oracel_wins"), "did you mean 'oracle_wins'?"),
        (("ecko",), "did you mean 'echo'?"),
        (("echo", "--knob", "horizon"), "--knob 'horizon' has not the form name=value"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    result = _run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr.strip().splitlines()[-1]
