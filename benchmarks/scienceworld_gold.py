"""Plays ScienceWorld's gold paths: whether they reach score 100 within the turn limit, and how long they are.

Run: python benchmarks/scienceworld_gold.py [--per-task 8] [--task NAME] [--preset easy] [--output FILE]
All 7,207 variations (--per-task 0) take an hour or two.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from env_server.environments.scienceworld import ScienceWorldEnvironment
from env_server.environments.scienceworld_tasks import SPLITS, TASKS


def main(
    per_task: Annotated[int, typer.Option(help="Variations of each task, spread over all; 0 plays all.")] = 8,
    task: Annotated[list[str] | None, typer.Option(help="Only these tasks.")] = None,
    preset: Annotated[str, typer.Option(help="The knob of this name.")] = "easy",
    output: Annotated[Path | None, typer.Option(help="Where to write the table.")] = None,
) -> None:
    """Print a table; exit with 1 where a path does not win in time."""
    ScienceWorldEnvironment.warm_up()
    lines = ["| task | variations | won in time | turns | turn limit | lost |", "| --- | --- | --- | --- | --- | --- |"]
    is_whole = True
    for name in track(task or TASKS):
        variations = chosen(name, per_task)
        limit = ScienceWorldEnvironment.spec.turn_limit(name)
        turns = {task_id: turns_to_win(task_id, preset) for task_id in variations}
        lost = [task_id for task_id, number in turns.items() if number is None or number > limit]
        won = sorted(number for number in turns.values() if number is not None)
        span = f"{won[0]}-{won[-1]}" if won else ""
        lines.append(
            f"| {name} | {len(variations)} | {len(variations) - len(lost)} | {span} | {limit} | {' '.join(lost)} |"
        )
        is_whole &= not lost
        print(lines[-1], flush=True)
    if output is not None:
        output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if not is_whole:
        raise typer.Exit(1)


def chosen(name: str, per_task: int) -> list[str]:
    """Ids of a task's variations, spread evenly over all of them."""
    total = sum(ScienceWorldEnvironment.num_tasks(split, {"task": name}) for split in SPLITS)
    count = min(per_task or total, total)
    return [f"{name}/{index * (total - 1) // max(1, count - 1)}" for index in range(count)]


def turns_to_win(task_id: str, preset: str) -> int | None:
    """Turns of the gold path; None if it does not win."""
    environment = ScienceWorldEnvironment()
    transition = environment.reset(task_id, 0, {"preset": preset})
    num_turns = 0
    while (action := environment.oracle()) is not None:
        transition = environment.step(action)
        num_turns += 1
        if not transition.action_valid:
            break
    environment.close()
    return num_turns if transition.success else None


if __name__ == "__main__":
    typer.run(main)
