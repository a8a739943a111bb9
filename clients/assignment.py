"""What the learner asks a pool to play, as records."""

from __future__ import annotations

from dataclasses import dataclass

from longturn.codec import task_from_proto
from longturn.errors import WireError
from longturn.records import Purpose, Task
from longturn.v1 import dispatch_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayRules:
    """How groups are to be played. Fields as in dispatch.proto; 0 means no limit, or the environment's."""

    temperature: float
    max_new_tokens: int
    max_turns: int
    max_episode_tokens: int
    max_episode_s: float
    max_group_s: float
    with_progress: bool
    max_member_retries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member to play."""

    member_index: int
    sampling_seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A group, or the missing part of one."""

    group_id: str
    attempt: int
    task: Task
    task_kind: str
    seed: int
    members: tuple[Member, ...]
    purpose: Purpose
    group_size: int
    min_policy_version: int
    max_policy_version: int | None
    temperature: float | None

    def __post_init__(self) -> None:
        indices = [member.member_index for member in self.members]
        if not indices or len(set(indices)) != len(indices) or max(indices) >= self.group_size:
            raise ValueError(f"group {self.group_id}: members {indices} of a group of {self.group_size}")


def rules_from_proto(message: dispatch_pb2.PlayRules) -> PlayRules:
    """Build the record of the rules; raise WireError if no completion could follow them."""
    if message.max_new_tokens < 1:
        raise WireError("play rules: max_new_tokens must be >= 1")
    return PlayRules(
        temperature=message.temperature,
        max_new_tokens=message.max_new_tokens,
        max_turns=message.max_turns,
        max_episode_tokens=message.max_episode_tokens,
        max_episode_s=message.max_episode_s,
        max_group_s=message.max_group_s,
        with_progress=message.with_progress,
        max_member_retries=message.max_member_retries,
    )


def assignment_from_proto(message: dispatch_pb2.GroupAssignment) -> Assignment:
    """Build the record of an assignment; raise WireError if it is malformed."""
    if len(message.sampling_seeds) != len(message.member_indices):
        raise WireError(
            f"group {message.group_id}: {len(message.sampling_seeds)} sampling seeds for "
            f"{len(message.member_indices)} members"
        )
    try:
        return Assignment(
            group_id=message.group_id,
            attempt=message.attempt,
            task=task_from_proto(message.task),
            task_kind=message.task_kind,
            seed=message.seed,
            members=tuple(
                Member(member_index=index, sampling_seed=seed)
                for index, seed in zip(message.member_indices, message.sampling_seeds, strict=True)
            ),
            purpose=Purpose(message.purpose),
            group_size=message.group_size,
            min_policy_version=message.min_policy_version,
            max_policy_version=message.max_policy_version if message.HasField("max_policy_version") else None,
            temperature=message.temperature if message.HasField("temperature") else None,
        )
    except ValueError as error:
        raise WireError(str(error)) from error
