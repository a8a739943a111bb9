"""What records refuse at their birth."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from clients.policies.base import Completion
from longturn.records import EndCause, EngineInfo, EpisodeStatus, FinishReason, PolicySpan, is_logprob
from tests.longturn.examples import make_turn


def _completion(logprob: float) -> Completion:
    return Completion(
        token_ids=(1,),
        logprobs=(logprob,),
        policy_spans=(PolicySpan(start=0, end=1, policy_version=0),),
        finish_reason=FinishReason.STOP,
        engine=EngineInfo(name="", version=""),
    )


@pytest.mark.parametrize("logprob", [-1e9, -0.5, 0.0, 5e-5])
def test_a_logprob_is_at_most_zero_but_for_rounding(logprob: float) -> None:
    assert is_logprob(logprob)
    assert _completion(logprob).logprobs == (logprob,)
    assert replace(make_turn(), behavior_logprobs=(-0.5, logprob, -0.5)).behavior_logprobs[1] == logprob


@pytest.mark.parametrize("logprob", [1e-3, 1.0, math.nan, math.inf, -math.inf])
def test_anything_else_is_refused_everywhere(logprob: float) -> None:
    assert not is_logprob(logprob)
    with pytest.raises(ValueError, match="positive or not finite"):
        _completion(logprob)
    with pytest.raises(ValueError, match="positive or not finite"):
        replace(make_turn(), behavior_logprobs=(-0.5, logprob, -0.5))


def test_what_broke_or_was_aborted_is_no_result() -> None:
    assert {status for status in EpisodeStatus if status.is_result} == {
        EpisodeStatus.TERMINATED,
        EpisodeStatus.TRUNCATED,
    }


def test_only_clocks_cut_by_wall_time() -> None:
    by_clock = {cause for cause in EndCause if cause.is_wall_time}
    assert by_clock == {EndCause.TIME_LIMIT, EndCause.MAX_EPISODE_TIME}
    assert all(cause.status.is_result for cause in by_clock)
