"""ScienceWorld: steps and resets against the package's own ScienceWorldEnv, and memory of many episodes.

Both sides play the same gold paths on the same variations, each action in turn, each in a Java machine of its own that
has played the same before. Times are wall times, since the work is done in another process.
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
from typing import Any

from _measuring import row, taken, tree_bytes

from longturn.extras import how_to_install

TASKS = ("find-plant/0", "chemistry-mix/0", "use-thermometer/0", "grow-plant/0", "power-component/0")
WARM_UP_ROUNDS = 2
NUM_LIVE = 32
MEMORY_GOAL_BYTES = 1536 * 2**20
STEP_GOAL = 8.0


def main() -> None:
    """Print the rows."""
    if importlib.util.find_spec("scienceworld") is None:
        print(json.dumps({"environment": "scienceworld", "skipped": how_to_install("server-scienceworld")}))
        return
    if sys.argv[1:] == ["live"]:
        print(json.dumps(live()))
        return
    rows = [row for preset in ("none", "easy") for row in compare(preset)]
    memory = json.loads(subprocess.run([sys.executable, __file__, "live"], stdout=subprocess.PIPE, check=True).stdout)
    what = f"resident memory of {NUM_LIVE} live episodes of {NUM_LIVE} variations, Java machine and worker"
    is_met = memory["live_bytes"] < MEMORY_GOAL_BYTES
    rows.append(row(what, memory["live_bytes"] / 2**20, None, unit="MB", goal="< 1536 MB", is_met=is_met))
    rows.append(row("the same with one episode", memory["one_bytes"] / 2**20, None, unit="MB"))
    notes = [
        f"Gold paths of {', '.join(TASKS)}; median wall time of a call. The package's step also asks for the room, the "
        "inventory and the valid actions."
    ]
    print(json.dumps({"environment": "scienceworld", "notes": notes, "rows": rows}))


def compare(preset: str) -> list[Any]:
    """Both sides over the same paths."""
    from scienceworld import ScienceWorldEnv

    from env_server.environments.scienceworld import ScienceWorldEnvironment, simplifications
    from env_server.environments.scienceworld_simulator import gold_path

    knobs = {"preset": preset}
    resolved = ScienceWorldEnvironment.spec.resolve_knobs(knobs)
    environment, library = ScienceWorldEnvironment(), ScienceWorldEnv("", envStepLimit=1000)
    times: dict[str, list[float]] = {}
    for round_index in range(WARM_UP_ROUNDS + 1):
        if round_index == WARM_UP_ROUNDS:
            times.clear()
        for task_id in TASKS:
            task, number = task_id.split("/")
            spelled = simplifications(task, resolved)
            taken(times, "reset", lambda task_id=task_id: environment.reset(task_id, 0, knobs))
            library.load(task, int(number), spelled)
            taken(times, "library reset", library.reset)
            for action in gold_path(task, int(number), spelled):
                transition = taken(times, "step", lambda action=action: environment.step(action))
                taken(times, "library step", lambda action=action: library.step(action))
                if transition.is_terminal:
                    break
    environment.close()
    library.close()
    step, library_step, reset, library_reset = (
        1000 * statistics.median(times[name]) for name in ("step", "library step", "reset", "library reset")
    )
    goal = f">= {STEP_GOAL:g}x" if preset == "none" else ""
    is_met = library_step >= STEP_GOAL * step if goal else None
    return [
        row(f"step, preset {preset}", step, library_step, unit="ms", goal=goal, is_met=is_met),
        row(f"reset, preset {preset}", reset, library_reset, unit="ms"),
    ]


def live() -> dict[str, int]:
    """Memory with one episode, and with many in play."""
    from env_server.environments.scienceworld import ScienceWorldEnvironment

    variations = ScienceWorldEnvironment.tasks("train", 0, NUM_LIVE)
    environments = [ScienceWorldEnvironment() for _ in variations]
    environments[0].reset(variations[0].task_id, 0, {})
    one_bytes = tree_bytes(os.getpid())
    for environment, variation in zip(environments, variations, strict=True):
        environment.reset(variation.task_id, 0, {})
    for _ in range(10):
        for environment in environments:
            environment.step("look around")
            environment.step("wait1")
    return {"one_bytes": one_bytes, "live_bytes": tree_bytes(os.getpid())}


if __name__ == "__main__":
    main()
