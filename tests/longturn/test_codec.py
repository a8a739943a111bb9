"""Records survive the wire; malformed messages are refused where they arrive."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longturn.codec import (
    float32s_from_bytes,
    float32s_to_bytes,
    int32s_from_bytes,
    int32s_to_bytes,
    step_result_from_proto,
    step_result_to_proto,
    task_from_proto,
    task_to_proto,
    trajectory_from_bytes,
    trajectory_to_bytes,
    turn_from_proto,
    turn_to_proto,
)
from longturn.errors import WireError
from longturn.records import EndCause, EpisodeStatus, Failure, PolicySpan, StepResult, Turn
from longturn.v1 import environment_pb2, trajectory_pb2
from tests.longturn.examples import make_task, make_trajectory, make_turn


@given(st.lists(st.integers(min_value=-(2**31), max_value=2**31 - 1)))
def test_ids_survive_packing_as_little_endian_int32(ids: list[int]) -> None:
    packed = int32s_to_bytes(ids)
    assert packed == struct.pack(f"<{len(ids)}i", *ids)
    assert int32s_from_bytes(packed) == tuple(ids)


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_float32_values_survive_packing_to_the_bit(values: list[float]) -> None:
    assert float32s_from_bytes(float32s_to_bytes(values)) == tuple(values)


@pytest.mark.parametrize("unpack", [int32s_from_bytes, float32s_from_bytes])
def test_bytes_that_are_not_whole_values_are_refused(unpack: object) -> None:
    assert callable(unpack)
    with pytest.raises(WireError, match="5 bytes"):
        unpack(b"12345")


def test_a_trajectory_survives_the_wire() -> None:
    trajectory = make_trajectory()
    assert trajectory_from_bytes(trajectory_to_bytes(trajectory)) == trajectory


def test_equal_trajectories_have_equal_bytes() -> None:
    assert trajectory_to_bytes(make_trajectory()) == trajectory_to_bytes(make_trajectory())


def test_a_demonstration_turn_carries_text_only() -> None:
    turn = Turn(action="go east", observation="-= Hall =-", action_valid=True, reasoning="exits east", is_trained=False)
    assert turn_from_proto(turn_to_proto(turn)) == turn


@given(
    logprobs=st.lists(st.floats(min_value=-50, max_value=0, width=32), min_size=1, max_size=30),
    version=st.integers(min_value=0, max_value=2**40),
)
def test_any_valid_completion_survives_the_wire(logprobs: list[float], version: int) -> None:
    turn = Turn(
        completion_ids=tuple(range(len(logprobs))),
        behavior_logprobs=tuple(logprobs),
        policy_spans=(PolicySpan(start=0, end=len(logprobs), policy_version=version),),
        action="look",
        observation="",
        action_valid=True,
    )
    assert turn_from_proto(turn_to_proto(turn)) == turn


def test_a_task_keeps_the_kind_of_every_knob() -> None:
    task = task_from_proto(task_to_proto(make_task()))
    assert task == make_task()
    assert {name: type(value) for name, value in task.knobs.items()} == {
        "objective": bool,
        "rooms": int,
        "noise": float,
        "style": str,
    }


@pytest.mark.parametrize(
    "result",
    [
        StepResult(observation="a dark room"),
        StepResult(observation="won", reward=1.0, score=1.0, success=True, status=EpisodeStatus.TERMINATED),
        StepResult(observation="", status=EpisodeStatus.TRUNCATED, end_cause=EndCause.TURN_LIMIT, progress=0.0),
        StepResult(observation="", status=EpisodeStatus.FAILED, failure=Failure(reason="STEP_TIMEOUT", message="10 s")),
    ],
    ids=lambda result: result.status.name,
)
def test_a_step_result_survives_the_wire(result: StepResult) -> None:
    assert step_result_from_proto(step_result_to_proto(result)) == result


def test_absent_progress_differs_from_zero_progress() -> None:
    absent = step_result_from_proto(step_result_to_proto(StepResult(observation="")))
    zero = step_result_from_proto(step_result_to_proto(StepResult(observation="", progress=0.0)))
    assert absent.progress is None
    assert zero.progress == 0.0


def test_a_status_that_was_never_set_is_refused() -> None:
    with pytest.raises(WireError):
        step_result_from_proto(environment_pb2.StepResult(observation="x"))


def test_a_nameless_task_is_refused() -> None:
    with pytest.raises(WireError, match="task"):
        task_from_proto(environment_pb2.Task())


def test_a_logprob_that_is_not_finite_is_refused() -> None:
    message = turn_to_proto(make_turn())
    message.behavior_logprobs = float32s_to_bytes((-0.5, math.nan, -0.1))
    with pytest.raises(WireError, match="not finite"):
        turn_from_proto(message)


def test_spans_with_a_gap_are_refused() -> None:
    message = turn_to_proto(make_turn())
    message.policy_spans[1].start = 2
    with pytest.raises(WireError, match="gap"):
        turn_from_proto(message)


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(WireError, match="does not parse"):
        trajectory_from_bytes(b"\xff\xff\xff")


def test_a_running_trajectory_is_refused() -> None:
    message = trajectory_pb2.Trajectory.FromString(trajectory_to_bytes(make_trajectory()))
    message.status = environment_pb2.EPISODE_STATUS_RUNNING
    message.end_cause = environment_pb2.END_CAUSE_UNSPECIFIED
    with pytest.raises(WireError, match="finished"):
        trajectory_from_bytes(message.SerializeToString())
