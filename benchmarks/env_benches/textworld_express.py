"""TextWorldExpress: steps and resets against the package's own TextWorldExpressEnv, and memory of many episodes.

Both sides play the same gold paths, each action in turn, each in a Java machine of its own that has played the same
before. Times are wall times, since the work is done in another process.
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

WARM_UP_ROUNDS = 4
ROUNDS = 4
NUM_LIVE = 64
STEP_GOAL = 1.3


def main() -> None:
    """Print the rows."""
    if importlib.util.find_spec("textworld_express") is None:
        print(json.dumps({"environment": "textworld_express", "skipped": how_to_install("server-textworld-express")}))
        return
    if sys.argv[1:] == ["live"]:
        print(json.dumps(live()))
        return
    rows = compare()
    memory = json.loads(subprocess.run([sys.executable, __file__, "live"], stdout=subprocess.PIPE, check=True).stdout)
    what = f"resident memory of {NUM_LIVE} live episodes, Java machine and worker"
    rows.append(row(what, memory["live_bytes"] / 2**20, None, unit="MB"))
    rows.append(row("the same with one episode", memory["one_bytes"] / 2**20, None, unit="MB"))
    notes = ["Gold paths of one variation of each of the eight games; median wall time of a call."]
    print(json.dumps({"environment": "textworld_express", "notes": notes, "rows": rows}))


def compare() -> list[Any]:
    """Both sides over the same games."""
    from textworld_express import TextWorldExpressEnv

    from env_server.environments.textworld_express import TextWorldExpressEnvironment
    from env_server.environments.textworld_express_simulator import gold_path
    from env_server.environments.textworld_express_tasks import GAMES, find

    environment, library = TextWorldExpressEnvironment(), TextWorldExpressEnv(envStepLimit=1000)
    times: dict[str, list[float]] = {}
    for round_index in range(WARM_UP_ROUNDS + ROUNDS):
        if round_index == WARM_UP_ROUNDS:
            times.clear()
        for listed in TextWorldExpressEnvironment.tasks("train", 0, len(GAMES)):
            task = find(listed.task_id)
            path = gold_path(task.game, task.package_parameters, task.seed, task.split)
            taken(times, "reset", lambda task=task: environment.reset(task.task_id, 0, {}))
            taken(
                times,
                "library reset",
                lambda task=task: library.reset(
                    seed=task.seed, gameFold=task.split, gameName=task.game, gameParams=task.package_parameters
                ),
            )
            for action in path:
                taken(times, "step", lambda action=action: environment.step(action))
                taken(times, "library step", lambda action=action: library.step(action))
    environment.close()
    library.close()
    step, library_step, reset, library_reset = (
        1000 * statistics.median(times[name]) for name in ("step", "library step", "reset", "library reset")
    )
    is_met = step <= STEP_GOAL * library_step
    return [
        row("step", step, library_step, unit="ms", goal=f"<= {STEP_GOAL:g}x the library's", is_met=is_met),
        row("reset", reset, library_reset, unit="ms"),
    ]


def live() -> dict[str, int]:
    """Memory with one episode, and with many in play."""
    from env_server.environments.textworld_express import TextWorldExpressEnvironment

    tasks = TextWorldExpressEnvironment.tasks("train", 0, NUM_LIVE)
    environments = [TextWorldExpressEnvironment() for _ in tasks]
    environments[0].reset(tasks[0].task_id, 0, {})
    one_bytes = tree_bytes(os.getpid())
    for environment, task in zip(environments, tasks, strict=True):
        environment.reset(task.task_id, 0, {})
    for _ in range(10):
        for environment in environments:
            environment.step("look around")
    return {"one_bytes": one_bytes, "live_bytes": tree_bytes(os.getpid())}


if __name__ == "__main__":
    main()
