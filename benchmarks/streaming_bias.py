"""Bias of the streaming filter on recorded runs: the batch rule and the stream judge the same groups again.

    python -m benchmarks.streaming_bias runs/NAME...

Reads each run's ledger, needs no model and prints one report per run in JSON. Lags are in training steps.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import groupby
from pathlib import Path

from learner.filters.shadow import GroupFacts, ShadowReport
from learner.filters.streaming import StreamingMass
from learner.filters.variance_mass import VarianceMass
from learner.length_bias import duration_bucket

_GROUPS = """
SELECT v.batch, v.score, s.kind, g.ended_s - g.issued_s AS duration_s, b.training_step - 1 - MIN(p.training_step) AS lag
FROM verdicts v
JOIN batches b ON b.batch = v.batch
JOIN groups g ON g.group_id = v.group_id
JOIN slots s ON s.slot_id = g.slot_id
JOIN trajectories t ON t.group_id = g.group_id
JOIN versions p ON p.policy_version = t.start_version
GROUP BY v.batch, v.group_id
ORDER BY v.batch, s.position
"""


def batches_of(run_dir: Path) -> Iterator[list[tuple[float, GroupFacts]]]:
    """Scores and facts of the groups of each recorded batch, in slot order."""
    with closing(sqlite3.connect(f"file:{run_dir / 'ledger.db'}?mode=ro", uri=True)) as connection:
        rows = connection.execute(_GROUPS).fetchall()
    for _, batch in groupby(rows, key=lambda row: row[0]):
        yield [
            (score, GroupFacts(kind=kind, duration=duration_bucket(duration_s), lag=max(0, lag)))
            for _, score, kind, duration_s, lag in batch
        ]


def replay(run_dir: Path, *, decay: float = 0.9) -> ShadowReport:
    """The report after all batches of a run, at the default settings of the rule."""
    batches, report = list(batches_of(run_dir)), ShadowReport()
    stream = StreamingMass(rule=VarianceMass(), groups_per_batch=max(map(len, batches)))
    for batch in batches:
        facts = [fact for _, fact in batch]
        report.observe(facts, stream.select([score for score, _ in batch]), stream.rule)
        stream.running.fade(decay)
    return report


if __name__ == "__main__":
    for name in sys.argv[1:]:
        found = replay(Path(name))
        print(json.dumps({"run": Path(name).name, "groups": found.groups["offered"], **found.measures()}, indent=1))
