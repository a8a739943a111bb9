"""Sokoban: steps and resets in this process. There is no library to compare with that gives text.

Times are processor time, which other work on the machine disturbs least.
"""

import json
import random
import time

from _measuring import row

NUM_TASKS = 20
STEPS_PER_TASK = 1000
STEP_GOAL = 20_000


def main() -> None:
    """Print the rows."""
    from env_server.environments.sokoban import SokobanEnvironment

    draw = random.Random(0)
    environment = SokobanEnvironment()
    reset_s = step_s = 0.0
    num_steps = 0
    for task in SokobanEnvironment.tasks("train", 0, NUM_TASKS):
        actions = draw.choices(("up", "down", "left", "right"), k=STEPS_PER_TASK)
        began_at_s = time.process_time()
        environment.reset(task.task_id, 0, {})
        reset_s += time.process_time() - began_at_s
        began_at_s = time.process_time()
        for action in actions:
            num_steps += 1
            if environment.step(action).is_terminal:
                break
        step_s += time.process_time() - began_at_s
    rate = num_steps / step_s
    rows = [
        row("steps a second", rate, None, unit="/s", goal=f">= {STEP_GOAL:,} /s", is_met=rate >= STEP_GOAL),
        row("reset", 1000 * reset_s / NUM_TASKS, None, unit="ms"),
    ]
    notes = [f"Random moves in {NUM_TASKS} rooms of the default size; mean processor time, observation included."]
    print(json.dumps({"environment": "sokoban", "notes": notes, "rows": rows}))


if __name__ == "__main__":
    main()
