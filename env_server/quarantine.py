"""Tasks that hang: refused once they have cost the server two workers.

A task is its id with its knobs: a knob may make all the difference. The list lives as long as the server.
"""

from __future__ import annotations

import json
from collections import Counter

from env_server.refusals import RefusedError
from longturn.records import Task

MAX_HANGS = 2
"""A start or step of a task that exceeded its time limit this often is one too many."""
MAX_LISTED = 50


class Quarantine:
    """Counts hangs and refuses what hung too often."""

    def __init__(self) -> None:
        self._num_hangs: Counter[str] = Counter()

    def note_hang(self, task: Task) -> None:
        """A start or a step of the task exceeded its time limit."""
        self._num_hangs[_name(task)] += 1

    def check(self, task: Task) -> None:
        """RefusedError(TASK_QUARANTINED) if the task hung too often."""
        if self._num_hangs and self._num_hangs[_name(task)] >= MAX_HANGS:
            raise RefusedError(
                "TASK_QUARANTINED",
                f"task {task.task_id} hung {MAX_HANGS} times in a start or a step (see the server's status);"
                " take another",
            )

    def listed(self) -> str:
        """What is refused, for people."""
        names = [name for name, number in self._num_hangs.items() if number >= MAX_HANGS]
        more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
        return ", ".join(names[:MAX_LISTED]) + more or "none"


def _name(task: Task) -> str:
    knobs = json.dumps(dict(sorted(task.knobs.items()))) if task.knobs else ""
    return f"{task.environment}:{task.task_id}{knobs}"
