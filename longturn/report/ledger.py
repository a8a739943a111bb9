"""What a run's ledger says about its batches; opened read-only, so a running learner is never disturbed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from longturn.codec import trajectory_from_bytes
from longturn.errors import ConfigError, WireError

_BATCHES = """
SELECT b.batch, b.training_step, b.outcome,
       (SELECT COUNT(*) FROM verdicts v WHERE v.batch = b.batch) AS num_groups,
       (SELECT COUNT(*) FROM verdicts v WHERE v.batch = b.batch AND v.verdict = 'kept') AS num_kept
FROM batches b WHERE b.outcome IS NOT NULL ORDER BY b.batch
"""
_TRAJECTORIES = """
SELECT t.trajectory, COALESCE(v.verdict = 'kept' AND b.outcome = 'TRAINED', 0)
FROM slots s JOIN groups g USING (slot_id) JOIN trajectories t USING (group_id)
LEFT JOIN batches b ON b.batch = s.batch LEFT JOIN verdicts v ON v.batch = s.batch AND v.group_id = g.group_id
WHERE s.purpose != 'EVAL' AND s.batch = ? AND g.state = 'COMPLETE'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts:
    """One consumed batch. Means are over all its trajectories; `trained_turns_sum` over those that were trained."""

    batch: int
    training_step: int
    outcome: str
    num_groups: int
    num_kept: int
    num_episodes: int
    success_mean: float
    return_mean: float
    turns_mean: float
    num_trained_episodes: int
    trained_turns_sum: int


@contextmanager
def open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write; raises ConfigError if the file is missing or no ledger."""
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; give the folder of a run that has started training")
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        yield connection
    except (sqlite3.DatabaseError, WireError) as error:
        raise ConfigError(
            f"{path} cannot be read as a ledger: {error}; restore it, or name another run folder"
        ) from error
    finally:
        connection.close()


def read_batches(folder: Path) -> list[BatchFacts]:
    """All consumed batches of a run in order; none before training began.

    Raises ConfigError naming the ledger if it is damaged, or missing in a run that was trained.
    """
    path = folder / "ledger.db"
    if not path.is_file():
        if any(folder.glob("checkpoints/step-*")):
            raise ConfigError(
                f"{path} is missing beside checkpoints, and what was trained stands in it; restore it, or move"
                f" {folder / 'checkpoints'} away to report without it"
            )
        return []
    with open_read_only(path) as connection:
        return [_facts(connection, row) for row in connection.execute(_BATCHES).fetchall()]


def _facts(connection: sqlite3.Connection, row: tuple[int, int, str, int, int]) -> BatchFacts:
    batch, training_step, outcome, num_groups, num_kept = row
    plays = [
        (trajectory_from_bytes(data), bool(is_trained))
        for data, is_trained in connection.execute(_TRAJECTORIES, (batch,))
    ]
    trained_turns = [len(trajectory.turns) for trajectory, is_trained in plays if is_trained]
    return BatchFacts(
        batch=batch,
        training_step=training_step,
        outcome=outcome,
        num_groups=num_groups,
        num_kept=num_kept,
        num_episodes=len(plays),
        success_mean=_mean([float(trajectory.success) for trajectory, _ in plays]),
        return_mean=_mean([trajectory.episode_return for trajectory, _ in plays]),
        turns_mean=_mean([float(len(trajectory.turns)) for trajectory, _ in plays]),
        num_trained_episodes=len(trained_turns),
        trained_turns_sum=sum(trained_turns),
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
