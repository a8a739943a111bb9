"""Small records that several tests share."""

from __future__ import annotations

from longturn.records import (
    EndCause,
    EngineInfo,
    EpisodeStatus,
    PolicySpan,
    SamplingParams,
    Task,
    TokenSpan,
    Trajectory,
    TrajectoryIdentity,
    Turn,
    TurnTimings,
)


def make_task() -> Task:
    """A task with a knob of every kind."""
    return Task(
        environment="textworld",
        task_id="coin_collector/116/7",
        knobs={"objective": False, "rooms": 16, "noise": 0.5, "style": "plain"},
    )


def make_turn(*, action: str = "go east", is_trained: bool = True) -> Turn:
    """A turn of five prompt tokens and three sampled ones, the weights changing after the first."""
    return Turn(
        prompt_ids=(2, 40, 41, 42, 3),
        completion_ids=(50, 4, 51),
        behavior_logprobs=(-0.5, -0.25, -0.125),
        policy_spans=(PolicySpan(start=0, end=1, policy_version=3), PolicySpan(start=1, end=3, policy_version=4)),
        action=action,
        observation="You can't go that way.",
        action_valid=False,
        reward=0.0,
        progress=0.25,
        state_hash=b"\x01\x02",
        reasoning_span=TokenSpan(start=0, end=1),
        action_span=TokenSpan(start=2, end=3),
        reasoning="exits east west",
        timings=TurnTimings(policy_s=0.5, environment_s=0.25, cached_tokens=5),
        is_trained=is_trained,
    )


def make_trajectory(
    *, group_id: str = "g0", member_index: int = 0, success: bool = False, turns: tuple[Turn, ...] | None = None
) -> Trajectory:
    """A trajectory that ended by the turn limit, or was won."""
    return Trajectory(
        identity=TrajectoryIdentity(run_id="run", group_id=group_id, member_index=member_index, attempt=0),
        task=make_task(),
        task_kind="coin_collector/116",
        seed=11,
        initial_observation="-= Attic =-\nThere are exits to the east and west.",
        initial_progress=0.0,
        initial_state_hash=b"\x00",
        turns=(make_turn(), make_turn(action="go west")) if turns is None else turns,
        status=EpisodeStatus.TERMINATED if success else EpisodeStatus.TRUNCATED,
        end_cause=None if success else EndCause.TURN_LIMIT,
        episode_return=1.0 if success else 0.0,
        score=1.0 if success else 0.0,
        success=success,
        sampling=SamplingParams(temperature=1.0, max_new_tokens=18, seed=5),
        tokenizer_hash="abc",
        environment_version="textworld-1.7.0/1",
        data_hash="d0",
        engine=EngineInfo(name="longturn", version="0.1"),
        used_privileged=True,
        started_at_s=1000.0,
        duration_s=2.5,
    )
