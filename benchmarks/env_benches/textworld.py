"""TextWorld: steps and resets against the package on the same story files, and memory of many episodes.

Both sides play the same walkthroughs, each action in turn, in this process. Times are processor time, which other work
on the machine disturbs least. The package is asked for nothing but what a step gives here by default: text, score, won.
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from _measuring import row, tree_bytes

from longturn.extras import how_to_install

TASKS = (
    "coin_collector/level=30/train/000000",
    "cooking/recipe=3,take=3,go=6,open=1,cook=1,cut=1,drop=1/train/000000",
    "simple/rewards=dense,goal=brief/train/000000",
    "quest/length=40,rooms=10/train/000000",
)
ROUNDS = 4
NUM_LIVE = 32
STEP_GOAL = 1.1
MEMORY_GOAL_BYTES = 250 * 2**20


def main() -> None:
    """Print the rows."""
    if importlib.util.find_spec("textworld") is None:
        print(json.dumps({"environment": "textworld", "skipped": how_to_install("server-textworld")}))
        return
    if sys.argv[1:] == ["live"]:
        print(json.dumps(live()))
        return
    for task_id in (*TASKS, *live_tasks()):  # apart: making a game takes memory of its own
        subprocess.run([sys.executable, "-c", PREPARE, task_id], check=True)
    rows = compare()
    memory = json.loads(subprocess.run([sys.executable, __file__, "live"], stdout=subprocess.PIPE, check=True).stdout)
    is_met = memory["live_bytes"] < MEMORY_GOAL_BYTES
    rows.append(row(f"resident memory of {NUM_LIVE} live episodes", memory["live_bytes"] / 2**20, None, unit="MB",
                    goal="< 250 MB", is_met=is_met))  # fmt: skip
    rows.append(row("the same with one episode", memory["one_bytes"] / 2**20, None, unit="MB"))
    notes = [f"Walkthroughs of {len(TASKS)} games, {ROUNDS} times; median processor time of a call."]
    print(json.dumps({"environment": "textworld", "notes": notes, "rows": rows}))


def compare() -> list[Any]:
    """Both sides over the same games."""
    import textworld

    from env_server.environments.textworld import TextWorldEnvironment, _obtain
    from env_server.environments.textworld_tasks import parse_task_id

    environment, times = TextWorldEnvironment(), dict[str, list[float]]()
    for _ in range(ROUNDS):
        for task_id in TASKS:
            entry = _obtain(parse_task_id(task_id))
            library = textworld.start(str(entry.story), textworld.EnvInfos(score=True, won=True, lost=True))
            taken(times, "library reset", library.reset)
            taken(times, "reset", lambda task_id=task_id: environment.reset(task_id, 0, {}))
            for command in entry.facts.walkthrough:
                taken(times, "library step", lambda command=command, library=library: library.step(command))
                taken(times, "step", lambda command=command: environment.step(command))
            library.close()
    environment.close()
    step, library_step, reset, library_reset = (
        1000 * statistics.median(times[name]) for name in ("step", "library step", "reset", "library reset")
    )
    is_met = step <= STEP_GOAL * library_step
    return [
        row("step", step, library_step, unit="ms", goal=f"<= {STEP_GOAL:g}x the library's", is_met=is_met),
        row("reset", reset, library_reset, unit="ms"),
    ]


def taken(times: dict[str, list[float]], name: str, call: Callable[[], Any]) -> None:
    """Note the processor time of a call."""
    began_at_s = time.process_time()
    call()
    times.setdefault(name, []).append(time.process_time() - began_at_s)


def live_tasks() -> list[str]:
    """As many different games as episodes."""
    return [f"coin_collector/level=20/train/{index:06d}" for index in range(NUM_LIVE)]


def live() -> dict[str, int]:
    """Memory with one episode, and with many in play."""
    from env_server.environments.textworld import TextWorldEnvironment

    TextWorldEnvironment.warm_up()
    environments = [TextWorldEnvironment() for _ in live_tasks()]
    environments[0].reset(live_tasks()[0], 0, {})
    one_bytes = tree_bytes(os.getpid())
    for environment, task_id in zip(environments, live_tasks(), strict=True):
        environment.reset(task_id, 0, {})
        for _ in range(5):
            environment.step("look")
    return {"one_bytes": one_bytes, "live_bytes": tree_bytes(os.getpid())}


PREPARE = (
    "import sys; from env_server.environments.textworld import TextWorldEnvironment as E; E.prepare(sys.argv[1], {}, 0)"
)


if __name__ == "__main__":
    main()
