"""Demonstrations of a tiny game: go where the sign points, and take the coin where it lies."""

from __future__ import annotations

import random

from longturn.records import EpisodeStatus, Task, Trajectory, Turn

DIRECTIONS = ("north", "east", "south", "west")


def demonstration(seed: int, *, num_turns: int = 12, untrained: frozenset[int] = frozenset()) -> Trajectory:
    """The last turn takes the coin; turns in `untrained` are marked."""
    draw = random.Random(seed)
    signs = [draw.choice(DIRECTIONS) for _ in range(num_turns - 1)]
    observations = [f"The sign says {sign}." for sign in signs] + ["There is a coin on the floor."]
    actions = [f"go {sign}" for sign in signs] + ["take coin"]
    notes = [f"sign {sign}" for sign in signs] + ["coin"]
    turns = tuple(
        Turn(
            action=action,
            reasoning=note,
            observation=(*observations[1:], "Taken.")[index],
            action_valid=True,
            is_trained=index not in untrained,
        )
        for index, (action, note) in enumerate(zip(actions, notes, strict=True))
    )
    return Trajectory(
        task=Task(environment="signs", task_id=f"signs-{seed}"),
        seed=seed,
        initial_observation=observations[0],
        turns=turns,
        status=EpisodeStatus.TERMINATED,
        episode_return=1.0,
        score=1.0,
        success=True,
    )
