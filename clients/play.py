"""`longturn play`: a person at the terminal plays one episode."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from clients.config import EnvClientConfig
from clients.sync_environment import SyncEnvClient, SyncEpisode
from longturn.errors import ConfigError
from longturn.records import EndCause, StepResult, Task

_LEAVE = frozenset({"/quit", "/exit"})


def play_by_hand(
    config: EnvClientConfig,
    *,
    environment: str,
    task_id: str,
    split: str,
    filters: Mapping[str, str],
    seed: int,
    max_turns: int,
    with_oracle: bool,
) -> None:
    """Play until the episode is over, `/quit`, or the end of input."""
    console = Console(highlight=False)
    with SyncEnvClient(config) as envs:
        task = _task(envs, environment, task_id, split, filters)
        console.print(f"{task.environment} {task.task_id}, seed {seed}; leave with /quit", markup=False)
        episode = envs.start(task, seed=seed, max_turns=max_turns, with_oracle=with_oracle)
        _play(console, episode)


def _task(envs: SyncEnvClient, environment: str, task_id: str, split: str, filters: Mapping[str, str]) -> Task:
    if task_id:
        return Task(environment=environment, task_id=task_id)
    infos = envs.list_tasks(environment, split, filters=filters, limit=1)
    if not infos:
        raise ConfigError(f"no task of {environment}/{split} has {dict(filters)}; change --split or --filter")
    return infos[0].task


def _play(console: Console, episode: SyncEpisode) -> None:
    result = episode.initial
    _show(console, result)
    while not result.status.is_final:
        action = _ask(console, result.turn_index)
        if action is None:
            result = episode.end(EndCause.CLIENT_REQUEST)
            break
        result = episode.step(action)
        _show(console, result)
    cause = f" by {result.end_cause.name}" if result.end_cause else ""
    outcome = "won" if result.success else "not won"
    console.print(f"{result.status.name}{cause} after {result.turn_index} turns: {outcome}, score {result.score:g}")


def _ask(console: Console, turn_index: int) -> str | None:
    try:
        action = console.input(f"[{turn_index}] > ", markup=False)
    except EOFError:
        return None
    return None if action.strip() in _LEAVE else action


def _show(console: Console, result: StepResult) -> None:
    console.print(result.observation.strip(), markup=False)
    if not result.action_valid:
        console.print("(the environment could not use this action)", style="dim")
    if result.failure is not None:
        console.print(f"broken: {result.failure.reason}: {result.failure.message}", markup=False)
    if result.oracle_action is not None and not result.status.is_final:
        console.print(f"(the expert would: {result.oracle_action})", style="dim", markup=False)
