"""Messages to records and back: the only place where both are known.

`*_from_proto` raises WireError if a message does not say what its schema promises.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping
from typing import TypeVar

from google.protobuf.message import DecodeError

from longturn.errors import WireError
from longturn.records import (
    EndCause,
    EngineInfo,
    EpisodeStatus,
    Failure,
    FinishReason,
    KnobValue,
    LogprobConvention,
    PolicySpan,
    RenderMode,
    SamplingParams,
    StepResult,
    Task,
    TokenSpan,
    Trajectory,
    TrajectoryIdentity,
    Turn,
    TurnTimings,
)
from longturn.v1 import environment_pb2, trajectory_pb2

NumberT = TypeVar("NumberT", int, float)

_SWAP = sys.byteorder == "big"


def int32s_to_bytes(values: Iterable[int]) -> bytes:
    """Pack ids as little-endian int32."""
    packed = array("i", values)
    if _SWAP:
        packed.byteswap()
    return packed.tobytes()


def int32s_from_bytes(data: bytes) -> tuple[int, ...]:
    """Unpack little-endian int32 ids; raise WireError if the length does not fit."""
    return tuple(_unpacked(array("i"), data))


def float32s_to_bytes(values: Iterable[float]) -> bytes:
    """Pack numbers as little-endian float32."""
    packed = array("f", values)
    if _SWAP:
        packed.byteswap()
    return packed.tobytes()


def float32s_from_bytes(data: bytes) -> tuple[float, ...]:
    """Unpack little-endian float32 numbers; raise WireError if the length does not fit."""
    return tuple(_unpacked(array("f"), data))


def _unpacked(values: array[NumberT], data: bytes) -> array[NumberT]:
    if len(data) % values.itemsize:
        raise WireError(f"{len(data)} bytes are not a whole number of {values.itemsize}-byte values")
    values.frombytes(data)
    if _SWAP:
        values.byteswap()
    return values


def knob_to_proto(value: KnobValue) -> environment_pb2.KnobValue:
    """Wrap a knob's value; bool is tested first because it is an int in Python."""
    if isinstance(value, bool):
        return environment_pb2.KnobValue(bool_value=value)
    if isinstance(value, int):
        return environment_pb2.KnobValue(int_value=value)
    if isinstance(value, float):
        return environment_pb2.KnobValue(float_value=value)
    return environment_pb2.KnobValue(string_value=value)


def knob_from_proto(message: environment_pb2.KnobValue) -> KnobValue:
    """Unwrap a knob's value; raise WireError if none is set."""
    kind = message.WhichOneof("value")
    if kind is None:
        raise WireError("a knob has no value")
    return getattr(message, kind)


def task_to_proto(task: Task) -> environment_pb2.Task:
    """Build the message of a task."""
    return environment_pb2.Task(
        environment=task.environment,
        task_id=task.task_id,
        knobs={name: knob_to_proto(value) for name, value in task.knobs.items()},
    )


def task_from_proto(message: environment_pb2.Task) -> Task:
    """Build the record of a task."""
    knobs: Mapping[str, KnobValue] = {name: knob_from_proto(value) for name, value in message.knobs.items()}
    try:
        return Task(environment=message.environment, task_id=message.task_id, knobs=knobs)
    except ValueError as error:
        raise WireError(str(error)) from error


def step_result_to_proto(result: StepResult) -> environment_pb2.StepResult:
    """Build the message of a step result."""
    return environment_pb2.StepResult(
        observation=result.observation,
        reward=result.reward,
        episode_return=result.episode_return,
        score=result.score,
        success=result.success,
        status=environment_pb2.EpisodeStatus.ValueType(result.status.value),
        end_cause=end_cause_to_proto(result.end_cause),
        failure=failure_to_proto(result.failure),
        turn_index=result.turn_index,
        action_valid=result.action_valid,
        progress=result.progress,
        oracle_action=result.oracle_action,
        state_hash=result.state_hash,
        admissible_actions=result.admissible_actions,
        extras=result.extras,
        rebuilt=result.rebuilt,
    )


def step_result_from_proto(message: environment_pb2.StepResult) -> StepResult:
    """Build the record of a step result."""
    try:
        return StepResult(
            observation=message.observation,
            reward=message.reward,
            episode_return=message.episode_return,
            score=message.score,
            success=message.success,
            status=EpisodeStatus(message.status),
            end_cause=_end_cause_from_proto(message.end_cause),
            failure=_failure_from_proto(message),
            turn_index=message.turn_index,
            action_valid=message.action_valid,
            progress=message.progress if message.HasField("progress") else None,
            oracle_action=message.oracle_action if message.HasField("oracle_action") else None,
            state_hash=message.state_hash,
            admissible_actions=tuple(message.admissible_actions),
            extras=dict(message.extras),
            rebuilt=message.rebuilt,
        )
    except ValueError as error:
        raise WireError(f"step result: {error}") from error


def end_cause_to_proto(cause: EndCause | None) -> environment_pb2.EndCause.ValueType:
    """The wire's value of a cause; None is UNSPECIFIED."""
    return environment_pb2.EndCause.ValueType(cause.value if cause else 0)


def _end_cause_from_proto(value: int) -> EndCause | None:
    return EndCause(value) if value else None


def failure_to_proto(failure: Failure | None) -> environment_pb2.Failure | None:
    """The message of a failure; None stays absent."""
    return environment_pb2.Failure(reason=failure.reason, message=failure.message) if failure else None


def _failure_from_proto(message: environment_pb2.StepResult | trajectory_pb2.Trajectory) -> Failure | None:
    if not message.HasField("failure"):
        return None
    return Failure(reason=message.failure.reason, message=message.failure.message)


def identity_to_proto(identity: TrajectoryIdentity) -> trajectory_pb2.TrajectoryIdentity:
    """Build the message of an identity."""
    return trajectory_pb2.TrajectoryIdentity(
        run_id=identity.run_id,
        group_id=identity.group_id,
        member_index=identity.member_index,
        attempt=identity.attempt,
    )


def identity_from_proto(message: trajectory_pb2.TrajectoryIdentity) -> TrajectoryIdentity:
    """Build the record of an identity."""
    return TrajectoryIdentity(
        run_id=message.run_id,
        group_id=message.group_id,
        member_index=message.member_index,
        attempt=message.attempt,
    )


def turn_to_proto(turn: Turn) -> trajectory_pb2.Turn:
    """Build the message of a turn."""
    return trajectory_pb2.Turn(
        prompt_ids=int32s_to_bytes(turn.prompt_ids),
        completion_ids=int32s_to_bytes(turn.completion_ids),
        behavior_logprobs=float32s_to_bytes(turn.behavior_logprobs),
        policy_spans=[
            trajectory_pb2.PolicySpan(start=span.start, end=span.end, policy_version=span.policy_version)
            for span in turn.policy_spans
        ],
        finish_reason=trajectory_pb2.FinishReason.ValueType(turn.finish_reason.value),
        action=turn.action,
        observation=turn.observation,
        action_valid=turn.action_valid,
        format_valid=turn.format_valid,
        reward=turn.reward,
        progress=turn.progress,
        state_hash=turn.state_hash,
        reasoning_span=_token_span_to_proto(turn.reasoning_span),
        action_span=_token_span_to_proto(turn.action_span),
        reasoning=turn.reasoning,
        timings=trajectory_pb2.TurnTimings(
            policy_s=turn.timings.policy_s,
            environment_s=turn.timings.environment_s,
            cached_tokens=turn.timings.cached_tokens,
        ),
        is_trained=turn.is_trained,
        num_synthetic_tokens=turn.num_synthetic_tokens,
    )


def turn_from_proto(message: trajectory_pb2.Turn) -> Turn:
    """Build the only `Turn` the rest of the process ever sees; raise WireError if the message is malformed."""
    try:
        return _turn_from_proto(message)
    except ValueError as error:
        raise WireError(f"turn: {error}") from error


def _turn_from_proto(message: trajectory_pb2.Turn) -> Turn:
    timings = message.timings
    return Turn(
        prompt_ids=int32s_from_bytes(message.prompt_ids),
        completion_ids=int32s_from_bytes(message.completion_ids),
        behavior_logprobs=float32s_from_bytes(message.behavior_logprobs),
        policy_spans=tuple(
            PolicySpan(start=span.start, end=span.end, policy_version=span.policy_version)
            for span in message.policy_spans
        ),
        finish_reason=FinishReason(message.finish_reason),
        action=message.action,
        observation=message.observation,
        action_valid=message.action_valid,
        format_valid=message.format_valid,
        reward=message.reward,
        progress=message.progress if message.HasField("progress") else None,
        state_hash=message.state_hash,
        reasoning_span=_token_span_from_proto(message, "reasoning_span"),
        action_span=_token_span_from_proto(message, "action_span"),
        reasoning=message.reasoning,
        timings=TurnTimings(
            policy_s=timings.policy_s, environment_s=timings.environment_s, cached_tokens=timings.cached_tokens
        ),
        is_trained=message.is_trained,
        num_synthetic_tokens=message.num_synthetic_tokens,
    )


def _token_span_to_proto(span: TokenSpan | None) -> trajectory_pb2.TokenSpan | None:
    return trajectory_pb2.TokenSpan(start=span.start, end=span.end) if span else None


def _token_span_from_proto(message: trajectory_pb2.Turn, name: str) -> TokenSpan | None:
    if not message.HasField(name):  # type: ignore[arg-type]  # a field's name, by parameter
        return None
    span: trajectory_pb2.TokenSpan = getattr(message, name)
    return TokenSpan(start=span.start, end=span.end)


def trajectory_to_proto(trajectory: Trajectory) -> trajectory_pb2.Trajectory:
    """Build the message of a trajectory."""
    return trajectory_pb2.Trajectory(
        identity=identity_to_proto(trajectory.identity) if trajectory.identity else None,
        retry_index=trajectory.retry_index,
        task=task_to_proto(trajectory.task),
        task_kind=trajectory.task_kind,
        seed=trajectory.seed,
        initial_observation=trajectory.initial_observation,
        initial_progress=trajectory.initial_progress,
        initial_state_hash=trajectory.initial_state_hash,
        turns=[turn_to_proto(turn) for turn in trajectory.turns],
        status=environment_pb2.EpisodeStatus.ValueType(trajectory.status.value),
        end_cause=end_cause_to_proto(trajectory.end_cause),
        failure=failure_to_proto(trajectory.failure),
        episode_return=trajectory.episode_return,
        score=trajectory.score,
        score_min=trajectory.score_min,
        score_max=trajectory.score_max,
        success=trajectory.success,
        sampling=_sampling_to_proto(trajectory.sampling),
        tokenizer_hash=trajectory.tokenizer_hash,
        environment_version=trajectory.environment_version,
        data_hash=trajectory.data_hash,
        engine=_engine_to_proto(trajectory.engine),
        render_mode=trajectory_pb2.RenderMode.ValueType(trajectory.render_mode.value),
        used_privileged=trajectory.used_privileged,
        started_at_s=trajectory.started_at_s,
        duration_s=trajectory.duration_s,
    )


def trajectory_from_proto(message: trajectory_pb2.Trajectory) -> Trajectory:
    """Build the record of a trajectory."""
    try:
        return _trajectory_from_proto(message)
    except ValueError as error:
        raise WireError(f"trajectory: {error}") from error


def _trajectory_from_proto(message: trajectory_pb2.Trajectory) -> Trajectory:
    return Trajectory(
        identity=identity_from_proto(message.identity) if message.HasField("identity") else None,
        retry_index=message.retry_index,
        task=task_from_proto(message.task),
        task_kind=message.task_kind,
        seed=message.seed,
        initial_observation=message.initial_observation,
        initial_progress=message.initial_progress if message.HasField("initial_progress") else None,
        initial_state_hash=message.initial_state_hash,
        turns=tuple(turn_from_proto(turn) for turn in message.turns),
        status=EpisodeStatus(message.status),
        end_cause=_end_cause_from_proto(message.end_cause),
        failure=_failure_from_proto(message),
        episode_return=message.episode_return,
        score=message.score,
        score_min=message.score_min,
        score_max=message.score_max,
        success=message.success,
        sampling=_sampling_from_proto(message),
        tokenizer_hash=message.tokenizer_hash,
        environment_version=message.environment_version,
        data_hash=message.data_hash,
        engine=_engine_from_proto(message),
        render_mode=RenderMode(message.render_mode),
        used_privileged=message.used_privileged,
        started_at_s=message.started_at_s,
        duration_s=message.duration_s,
    )


def _sampling_to_proto(sampling: SamplingParams | None) -> trajectory_pb2.SamplingParams | None:
    if sampling is None:
        return None
    return trajectory_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_new_tokens=sampling.max_new_tokens,
        seed=sampling.seed,
    )


def _sampling_from_proto(message: trajectory_pb2.Trajectory) -> SamplingParams | None:
    if not message.HasField("sampling"):
        return None
    sampling = message.sampling
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_new_tokens=sampling.max_new_tokens,
        seed=sampling.seed,
    )


def _engine_to_proto(engine: EngineInfo | None) -> trajectory_pb2.EngineInfo | None:
    if engine is None:
        return None
    return trajectory_pb2.EngineInfo(
        name=engine.name,
        version=engine.version,
        logprob_convention=trajectory_pb2.LogprobConvention.ValueType(engine.logprob_convention.value),
    )


def _engine_from_proto(message: trajectory_pb2.Trajectory) -> EngineInfo | None:
    if not message.HasField("engine"):
        return None
    engine = message.engine
    return EngineInfo(
        name=engine.name,
        version=engine.version,
        logprob_convention=LogprobConvention(engine.logprob_convention),
    )


def trajectory_to_bytes(trajectory: Trajectory) -> bytes:
    """Serialise a trajectory as it crosses the wire and lies in the ledger."""
    return trajectory_to_proto(trajectory).SerializeToString(deterministic=True)


def trajectory_from_bytes(data: bytes) -> Trajectory:
    """Parse a serialised trajectory; raise WireError if it is malformed."""
    try:
        message = trajectory_pb2.Trajectory.FromString(data)
    except DecodeError as error:
        raise WireError(f"trajectory does not parse: {error}") from error
    return trajectory_from_proto(message)
