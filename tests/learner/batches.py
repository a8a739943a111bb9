"""Batches of made-up trajectories, without a ledger."""

from __future__ import annotations

from learner.advantages.shaping import RewardOptions
from learner.batch import Batch, BatchOptions, build_batch
from learner.ledger.records import StoredMember, TakenBatch, TakenGroup
from longturn.codec import trajectory_to_bytes
from longturn.v1 import dispatch_pb2, environment_pb2
from tests.support.scripted_pool import Member, made_up


def batch_of(num_groups: int = 3, group_size: int = 4, *, reward: RewardOptions | None = None) -> Batch:
    """Groups of two successes and two failures each, but the first, whose members all succeed."""
    groups = []
    for slot in range(num_groups):
        members = []
        for index in range(group_size):
            member = Member(
                assignment=dispatch_pb2.GroupAssignment(
                    group_id=f"t{slot:06d}.0", task=environment_pb2.Task(environment="scripted", task_id=f"task-{slot}")
                ),
                run_id="run",
                tokenizer_hash="",
                member_index=index,
                sampling_seed=slot,
                temperature=1.0,
                policy_version=0,
            )
            data = trajectory_to_bytes(made_up(member, success=index % 2 == 0 if slot else True))
            members.append(StoredMember(member_index=index, attempt=0, data=data))
        groups.append(
            TakenGroup(slot=slot, group_id=f"t{slot:06d}.0", kind="k", duration_s=1.0, members=tuple(members))
        )
    taken = TakenBatch(batch=0, groups=tuple(groups), lost=(), num_closed_slots=0)
    return build_batch(
        taken,
        BatchOptions(vocabulary_size=48, max_row_tokens=999, reward=reward or RewardOptions(), discount=0.8),
    )
