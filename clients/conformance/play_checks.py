"""Checks of what an environment answers while it is played."""

from __future__ import annotations

import asyncio
import math

from clients.conformance.neighbours import Neighbour, repeat_beside
from clients.conformance.runs import Run, check_equal, check_unbroken, end, place, play, repeat, script
from clients.conformance.subject import CheckFailedError, CheckSkippedError, Subject
from clients.policies.text import OraclePolicy, RandomPolicy, ScriptedTextPolicy
from longturn.records import EndCause, EpisodeStatus, Task

DEFAULT_CEILING = 0.1
"""What a random policy may win where the environment states nothing."""
BAD_ACTIONS = {
    "empty": "",
    "blank": " \t\r\n",
    "NUL": "\x00",
    "control characters": "\x1b[2J\x07\x08",
    "a lone surrogate": "\ud800",
    "full-width brackets": "［go］【north】（）",
    "emoji and combining marks": "🧭 e\u0301\u200f\u202e",
    "a format string": "%s%n{0}${x}",
    "1 MB": "a" * 2**20,
}
NOTHING = ("", "wait")
"""What a policy that does nothing says."""
GARBAGE = "\x00 ［no such action］"
TURN_LIMIT = 5
_LISTED = 50
_SUM_TOLERANCE = 1e-6
_SURPRISE = 0.01
_MAX_IDLE_TURNS = 100


async def tasks_are_listed(subject: Subject) -> str:
    """Every split lists tasks, twice the same, and no id twice; the spec says what people must know."""
    info = subject.info
    for name in ("version", "data_hash", "action_format", "description", "licence"):
        if not getattr(info, name).strip():
            raise CheckFailedError(f"the spec's {name} is empty")
    owner: dict[str, str] = {}
    for split in info.splits:
        first, again = [
            await subject.envs.list_tasks(info.name, split, filters=subject.options.filters, limit=_LISTED)
            for _ in range(2)
        ]
        if not first and not subject.options.filters:
            raise CheckFailedError(f"split {split} lists no task")
        if first != again:
            raise CheckFailedError(f"split {split} lists other tasks when it is asked again")
        for listed in first:
            task_id = listed.task.task_id
            if task_id in owner:
                raise CheckFailedError(f"task {task_id} is listed twice: in {owner[task_id]} and in {split}")
            owner[task_id] = split
    return f"{len(owner)} tasks in {len(info.splits)} splits"


async def seeds_fix_episodes(subject: Subject) -> str:
    """Task, knobs, seed and actions fix an episode, also while others are played in the same worker."""
    need_reproducible(subject)
    runs = [await script(subject, index) for index in range(len(subject.tasks))]
    for run in runs:
        check_equal(subject, run, (await repeat(subject, run)).results, when="when played again")
    neighbours = [Neighbour(subject, index) for index in range(subject.options.num_neighbours)]
    await asyncio.gather(*(neighbour.start() for neighbour in neighbours))
    for run in runs:
        beside = await repeat_beside(subject, run, neighbours)
        check_equal(subject, run, beside.results, when=f"among {len(neighbours)} others")
    await asyncio.gather(*(neighbour.end() for neighbour in neighbours))
    return f"{len(runs)} episodes, alone and among {len(neighbours)} others"


async def oracle_wins(subject: Subject) -> str:
    """The oracle wins every task within the turn limit, and progress is 1 then."""
    if not subject.info.has_oracle:
        raise CheckSkippedError("the spec says has_oracle=False")
    num_turns = 0
    for index, task in enumerate(subject.tasks):
        run = await _play_oracle(subject, task, subject.seed(index))
        if not run.last.success:
            how = f"{run.last.status.name} with score {run.last.score:g}"
            raise CheckFailedError(f"{run.where}: the oracle did not win but ended {how}")
        if run.last.status is not EpisodeStatus.TERMINATED:
            raise CheckFailedError(f"{run.where}: a success with status {run.last.status.name}")
        if subject.info.has_progress and run.last.progress not in (None, 1.0):
            raise CheckFailedError(f"{run.where}: progress is {run.last.progress} at the goal, not 1")
        num_turns += len(run.actions)
    return f"{len(subject.tasks)} tasks in {num_turns} turns"


async def noop_never_wins(subject: Subject) -> str:
    """A policy that does nothing never succeeds."""
    for index, task in enumerate(subject.tasks):
        for action in NOTHING:
            player = ScriptedTextPolicy([action]).begin(0)
            run = await play(subject, task, subject.seed(index), player, limit=_MAX_IDLE_TURNS)
            if any(result.success for result in run.results):
                raise CheckFailedError(f"{run.where}: success by saying {action!r}")
    return f"{len(NOTHING) * len(subject.tasks)} episodes"


async def random_stays_under_ceiling(subject: Subject) -> str:
    """A random policy wins no larger share of its episodes than the spec's `random_success_ceiling`."""
    stated = subject.info.random_success_ceiling
    ceiling = DEFAULT_CEILING if stated is None else stated
    num_episodes = subject.options.num_random_episodes
    won: list[Run] = []
    for index in range(num_episodes):
        task, seed = subject.tasks[index % len(subject.tasks)], subject.seed(index)
        run = await play(subject, task, seed, RandomPolicy().begin(seed))
        if run.last.success:
            won.append(run)
    if _chance_of(len(won), num_episodes, ceiling) < _SURPRISE:
        share = f"{len(won)} of {num_episodes} random episodes succeeded"
        source = "random_success_ceiling" if stated is not None else "the default ceiling"
        raise CheckFailedError(f"{share}, the first at {won[0].where}; {source} is {ceiling:g}")
    return f"{len(won)} of {num_episodes} episodes won, ceiling {ceiling:g}"


async def bad_actions_are_steps(subject: Subject) -> str:
    """Any text is a step: it is answered, counts, and disturbs no other episode."""
    task, seed = subject.tasks[0], subject.seed(0)
    neighbour = Neighbour(subject, 1)
    await neighbour.start()
    episode = await subject.envs.start(task, seed=seed)
    for name, action in BAD_ACTIONS.items():
        if episode.last.status.is_final:
            episode = await subject.envs.start(task, seed=seed)
        before = episode.last.turn_index
        result = await episode.step(action)
        check_unbroken(result, task, seed, after=f"action {name}")
        if result.turn_index != before + 1:
            raise CheckFailedError(f"{place(task, seed, before)}: action {name} did not count as a turn")
    await end(episode)
    if (await neighbour.step()).rebuilt:
        raise CheckFailedError(f"{place(task, seed, 0)}: the worker died of a bad action")
    await neighbour.end()
    return f"{len(BAD_ACTIONS)} actions"


async def turn_limit_ends_episodes(subject: Subject) -> str:
    """The turn limit ends an episode of nothing but invalid actions, and not as a success."""
    for index, task in enumerate(subject.tasks):
        player = ScriptedTextPolicy([GARBAGE]).begin(0)
        run = await play(subject, task, subject.seed(index), player, limit=TURN_LIMIT + 1, max_turns=TURN_LIMIT)
        if len(run.actions) > TURN_LIMIT or not run.last.status.is_final:
            raise CheckFailedError(f"{run.where}: {run.last.status.name} beyond the turn limit of {TURN_LIMIT}")
        if run.last.success:
            raise CheckFailedError(f"{run.where}: success by the invalid action {GARBAGE!r}")
        if run.last.status is EpisodeStatus.TRUNCATED and run.last.end_cause is not EndCause.TURN_LIMIT:
            raise CheckFailedError(f"{run.where}: ended by {run.last.end_cause}, not by the turn limit")
    return f"{len(subject.tasks)} episodes, limit {TURN_LIMIT}"


async def rewards_sum_to_score(subject: Subject) -> str:
    """The rewards add up to what the score gained, and the score stays in its range."""
    runs = [await script(subject, index) for index in range(len(subject.tasks))]
    if subject.info.has_oracle:
        runs += [await _play_oracle(subject, task, subject.seed(index)) for index, task in enumerate(subject.tasks)]
    for run in runs:
        _check_sums(subject, run)
    return f"{len(runs)} episodes"


def _check_sums(subject: Subject, run: Run) -> None:
    info = subject.info
    slack = _SUM_TOLERANCE * max(1.0, info.score_max - info.score_min)
    if run.results[0].reward:
        raise CheckFailedError(f"{place(run.task, run.seed, 0)}: the reset has reward {run.results[0].reward:g}, not 0")
    earned = 0.0
    for result in run.results:
        earned += result.reward
        where = place(run.task, run.seed, result.turn_index)
        gained = result.score - run.results[0].score
        if not math.isclose(earned, gained, rel_tol=0.0, abs_tol=slack):
            raise CheckFailedError(f"{where}: the rewards add up to {earned:g}, the score gained {gained:g}")
        if not info.score_min - slack <= result.score <= info.score_max + slack:
            raise CheckFailedError(
                f"{where}: score {result.score:g} is outside [{info.score_min:g}, {info.score_max:g}]"
            )


async def _play_oracle(subject: Subject, task: Task, seed: int) -> Run:
    return await play(subject, task, seed, OraclePolicy().begin(seed), with_oracle=True)


def _chance_of(num_won: int, num_episodes: int, share: float) -> float:
    """The chance that at least so many of the episodes succeed if each does with probability `share`."""
    return sum(
        math.comb(num_episodes, number) * share**number * (1.0 - share) ** (num_episodes - number)
        for number in range(num_won, num_episodes + 1)
    )


def need_reproducible(subject: Subject) -> None:
    """Raise CheckSkippedError where the environment promises no repetition."""
    if not subject.info.is_reproducible:
        raise CheckSkippedError("the spec says determinism=NONE")
