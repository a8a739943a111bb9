"""ALFWorld: resets and steps against TextWorld's PddlEnv as the alfworld package uses it, and memory of many episodes.

Games are those that ALFWORLD_DATA names, else generated ones written out as game files; both sides play the same games
and actions, in turn. Times are processor time, which other work on the machine disturbs least.
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longturn.extras import how_to_install

NUM_GAMES = 12
NUM_LIVE = 32
MEMORY_GOAL_BYTES = 400 * 2**20
RESET_GOAL = 1.8


def main() -> None:
    """Print the rows."""
    if importlib.util.find_spec("fast_downward") is None:
        print(json.dumps({"environment": "alfworld", "skipped": how_to_install("server-alfworld")}))
        return
    if sys.argv[1:] == ["live"]:
        print(json.dumps(live()))
        return
    with tempfile.TemporaryDirectory() as folder:
        rows, source = compare(Path(folder))
    memory = json.loads(subprocess.run([sys.executable, __file__, "live"], stdout=subprocess.PIPE, check=True).stdout)
    rows.append(row(f"resident memory of {NUM_LIVE} live episodes", memory["live_bytes"] / 2**20, None, unit="MB",
                    goal="< 400 MB", is_met=memory["live_bytes"] < MEMORY_GOAL_BYTES))  # fmt: skip
    rows.append(row("the same process before the first", memory["idle_bytes"] / 2**20, None, unit="MB"))
    notes = [
        f"{NUM_GAMES} {source} games, median processor time of a call; the library's load and reset both translate."
    ]
    print(json.dumps({"environment": "alfworld", "notes": notes, "rows": rows}))


def row(what: str, ours: float, theirs: float | None, *, unit: str, goal: str = "", is_met: bool | None = None) -> Any:
    """A line of the report."""
    return {"what": what, "ours": ours, "theirs": theirs, "unit": unit, "goal": goal or None, "met": is_met}


def compare(folder: Path) -> tuple[list[Any], str]:
    """Both sides over the same games."""
    from env_server.environments import alfworld as adapter
    from env_server.environments.alfworld import AlfworldEnvironment

    AlfworldEnvironment.warm_up()
    tasks, source = chosen_tasks(NUM_GAMES)
    library = Library()
    times: dict[str, list[float]] = {}
    for task_id in tasks:
        AlfworldEnvironment.prepare(task_id, {}, 0)
        game = adapter._game(task_id)
        path = folder / "game.tw-pddl"
        path.write_text(json.dumps({"pddl_domain": game.domain, "grammar": game.grammar,
                                    "pddl_problem": game.problem, "walkthrough": list(game.walkthrough)}))  # fmt: skip
        environment = AlfworldEnvironment()
        adapter._playable.cache_clear()
        taken(times, "load", lambda path=path: library.load(path))
        taken(times, "library reset", library.reset)
        taken(times, "new", lambda task_id=task_id, environment=environment: environment.reset(task_id, 0, {}))
        taken(times, "again", lambda task_id=task_id, environment=environment: environment.reset(task_id, 0, {}))
        for command in game.walkthrough:
            taken(times, "library step", lambda command=command: library.step(command))
            taken(times, "step", lambda command=command, environment=environment: environment.step(command))
        environment.close()
    new, again, load, reset, step, library_step = (
        1000 * statistics.median(times[name])
        for name in ("new", "again", "load", "library reset", "step", "library step")
    )
    goal = f">= {RESET_GOAL}x faster"
    return [
        row("reset, another game each time (library: load + reset)", new, load + reset, unit="ms"),
        row("reset, another game each time (library: reset alone)", new, reset, unit="ms", goal=goal,
            is_met=reset / new >= RESET_GOAL),
        row("reset, the same game again", again, reset, unit="ms", goal=goal, is_met=reset / again >= RESET_GOAL),
        row("step along the walkthrough", step, library_step, unit="ms"),
    ], source  # fmt: skip


class Library:
    """TextWorld's environment with ALFWorld's names."""

    def __init__(self) -> None:
        from textworld import EnvInfos
        from textworld.envs.pddl import PddlEnv

        self._env: Any = PddlEnv(EnvInfos(won=True, admissible_commands=True))

    def load(self, path: Path) -> None:
        from env_server.environments.alfworld_names import names_of

        self._env.load(json.loads(path.read_bytes()))
        for name, text in names_of(self._env._entity_infos).items():
            self._env._entity_infos[name].name = text

    def reset(self) -> None:
        self._env.reset()

    def step(self, command: str) -> None:
        self._env.step(command)


def taken(times: dict[str, list[float]], name: str, call: Callable[[], Any]) -> None:
    """Note the processor time of a call."""
    began_at_s = time.process_time()
    call()
    times.setdefault(name, []).append(time.process_time() - began_at_s)


def chosen_tasks(count: int) -> tuple[list[str], str]:
    """Task ids, and what they are called."""
    from env_server.environments.alfworld import AlfworldEnvironment
    from env_server.environments.alfworld_files import DATA_VARIABLE

    source = "file" if os.environ.get(DATA_VARIABLE) else "generated"
    num_tasks = min(AlfworldEnvironment.num_tasks("train", {"source": source}), 8 * count)
    stride = max(1, num_tasks // count)
    ids = [
        AlfworldEnvironment.tasks("train", at, 1, {"source": source})[0].task_id for at in range(0, num_tasks, stride)
    ]
    return ids[:count], "real" if source == "file" else source


def live() -> dict[str, int]:
    """Memory of a process with many different games in play."""
    from env_server.environments.alfworld import AlfworldEnvironment

    AlfworldEnvironment.warm_up()
    tasks, _ = chosen_tasks(NUM_LIVE)
    for task_id in tasks:  # apart: translating is the preparers' work and needs memory of its own
        subprocess.run([sys.executable, "-c", PREPARE, task_id], check=True)
    idle_bytes = resident_bytes()
    environments = [AlfworldEnvironment() for _ in tasks]
    for environment, task_id in zip(environments, tasks, strict=True):
        environment.reset(task_id, 0, {})
        for _ in range(5):
            environment.step(environment.oracle() or "look")
    live_bytes = resident_bytes()
    for environment in environments:
        environment.close()
    return {"idle_bytes": idle_bytes, "live_bytes": live_bytes}


PREPARE = (
    "import sys; from env_server.environments.alfworld import AlfworldEnvironment as E; E.prepare(sys.argv[1], {}, 0)"
)


def resident_bytes() -> int:
    """Of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
