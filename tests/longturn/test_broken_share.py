"""One rule for runs and commands: how many games may break."""

from __future__ import annotations

import inspect

from clients.commands import act, prepare_tasks
from longturn.broken_share import DEFAULT_MAX_BROKEN_SHARE, too_many_broke
from longturn.launch.config import EvaluationConfig


def test_a_share_may_break_but_never_all() -> None:
    assert not too_many_broke(2, 100, max_broken_share=0.02)
    assert too_many_broke(3, 100, max_broken_share=0.02)
    assert too_many_broke(4, 4, max_broken_share=1.0)
    assert not too_many_broke(0, 0, max_broken_share=0.0)


def test_runs_and_commands_allow_the_same_share_unless_told() -> None:
    of_commands = {
        inspect.signature(command).parameters["max_broken_share"].default for command in (act, prepare_tasks)
    }
    assert of_commands == {EvaluationConfig.model_fields["max_broken_share"].default} == {DEFAULT_MAX_BROKEN_SHARE}
