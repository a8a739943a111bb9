"""Which broken episodes are played again, and what that means to a panel."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from clients.actor import Actor
from clients.config import EnvClientConfig
from clients.environment import EnvClient
from clients.panel import Outcome, PanelOptions, play_panel
from clients.policies.text import OraclePolicy, RandomPolicy
from clients.recording import text_player
from clients.retry_rules import is_transient, meets_every_task
from longturn.errors import CallRefusedError, EpisodeError, LongturnError, PolicyError, UnreachableError
from longturn.metrics import Metrics
from longturn.records import KnobValue, Task
from longturn.task_file import TaskEntry


def _refused(reason: str, *, retry_after_s: float | None = None) -> CallRefusedError:
    return CallRefusedError(reason, reason=reason, retry_after_s=retry_after_s)


@pytest.mark.parametrize(
    ("error", "is_worth_another"),
    [
        (EpisodeError("broke", reason="STEP_TIMEOUT"), True),
        (PolicyError("away", reason="ENGINE_AWAY"), True),
        (PolicyError("none", reason="NO_ENGINE"), True),
        (UnreachableError("away"), True),
        (_refused("WORKER_CRASHED"), True),
        (_refused("STATE_DIR_UNWRITABLE", retry_after_s=1.0), True),
        (_refused("TASK_NOT_FOUND"), False),
        (_refused("TASK_QUARANTINED"), False),
        (_refused("BAD_KNOB"), False),
        (PolicyError("no", reason="ENGINE_REFUSED"), False),
        (PolicyError("no", reason="NO_ORACLE"), False),
    ],
)
def test_only_what_may_pass_is_worth_a_fresh_episode(error: LongturnError, is_worth_another: bool) -> None:
    assert is_transient(error) is is_worth_another


def test_what_every_task_meets_is_told_from_what_one_task_has() -> None:
    assert meets_every_task(UnreachableError("away"))
    assert meets_every_task(PolicyError("none", reason="NO_ENGINE"))
    assert not meets_every_task(_refused("TASK_QUARANTINED"))


def _entry(environment: str, index: object, **knobs: KnobValue) -> TaskEntry:
    return TaskEntry(task=Task(environment=environment, task_id=f"{environment}/test/{index}", knobs=knobs))


async def _play(address: str, entries: Sequence[TaskEntry], policy: OraclePolicy | RandomPolicy) -> list[Outcome]:
    async with EnvClient(EnvClientConfig(address=address)) as envs:
        actor = Actor(envs, metrics=Metrics())
        return await play_panel(
            entries, text_player(policy), actor, PanelOptions(concurrency=1), on_outcome=lambda outcome: None
        )


def test_a_task_that_does_not_exist_is_tried_once_and_the_panel_goes_on(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    entries = [_entry("echo", "xyz"), _entry("echo", "000001", horizon=2)]
    with caplog.at_level(logging.WARNING, logger="clients.panel"):
        missing, played = asyncio.run(_play(address, entries, OraclePolicy()))
    assert isinstance(missing.result, CallRefusedError)
    assert missing.result.reason == "TASK_NOT_FOUND"
    assert not isinstance(played.result, LongturnError)
    assert [record.getMessage() for record in caplog.records if record.name == "clients.panel"] == ["episode broke"]


def test_a_broken_episode_is_played_again_until_the_panel_gives_its_task_up(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    entries = [_entry("faulty", "000001", horizon=3, fail_at_turn=2)]
    with caplog.at_level(logging.WARNING, logger="clients.panel"):
        [broken] = asyncio.run(_play(address, entries, RandomPolicy()))
    assert isinstance(broken.result, EpisodeError)
    assert [record.getMessage() for record in caplog.records if record.name == "clients.panel"] == ["episode broke"] * 3
