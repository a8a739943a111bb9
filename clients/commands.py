"""`longturn act`, `eval`, `play` and `envs`. Imports are light: every `longturn --help` loads this module."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clients.config import ActConfig, EvalConfig
from longturn.broken_share import DEFAULT_MAX_BROKEN_SHARE
from longturn.config import load_config, parse_value, spell_override
from longturn.errors import ConfigError
from longturn.logs import LogFormat, configure_logging
from longturn.options import ConfigPath, DryRun, LogFormatOption, Overrides, ReadyFile, begin, refuse_given
from longturn.records import KnobValue

if TYPE_CHECKING:
    from clients.evaluate import PanelChoice, PolicyChoice
    from clients.evaluation import Evaluation
    from clients.panel import Outcome, PanelOptions

Server = Annotated[str | None, typer.Option("--server", help="host:port of the env server; several: a:1,b:2.")]
TaskFile = Annotated[Path | None, typer.Option("--tasks", help="Task file (JSONL); or name --env and --split.")]
Environment = Annotated[str, typer.Option("--env", help="Environment whose tasks are listed.")]
Split = Annotated[str, typer.Option("--split", help="Split of the environment.")]
Filters = Annotated[list[str] | None, typer.Option("--filter", help="name=value a task must have; repeatable.")]
Skip = Annotated[int, typer.Option("--skip", min=0, help="Leave out the first so many tasks.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Most tasks.")]
TaskSeed = Annotated[int, typer.Option("--task-seed", min=0, help="Seed of the episodes of listed tasks.")]
MaxTurns = Annotated[int, typer.Option("--max-turns", min=0, help="Turn limit; 0: the environment's.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the policy.")]
Concurrency = Annotated[int, typer.Option("--concurrency", min=1, help="Episodes at once.")]
PolicySettings = Annotated[
    list[str] | None, typer.Option("--policy-set", help="name=value of the policy's own settings; repeatable.")
]
Knobs = Annotated[
    list[str] | None, typer.Option("--knob", help="name=value of every episode, before a task's own; repeatable.")
]
MaxBrokenShare = Annotated[
    float,
    typer.Option("--max-broken-share", min=0.0, max=1.0, help="Share of the games that may break."),
]

_RECORDING = (
    "policy",
    "policy_settings",
    "tasks",
    "num_episodes",
    "max_turns",
    "seed",
    "with_progress",
    "knobs",
    "max_broken_share",
)
"""Parameters of `act` that only recording has."""
_SAMPLING = ("tokenizer", "api_key", "temperature", "max_new_tokens", "max_episode_tokens")
"""Parameters of `eval` that only engines have."""
_LISTING = ("environment", "split", "filters", "task_seed")
"""Parameters of `eval` that choose among the tasks that a server lists."""


def with_server(overrides: Sequence[str] | None, server: str | None) -> list[str]:
    """The overrides, and last what --server says."""
    return [*(overrides or ()), *([spell_override("env_server.address", server)] if server else ())]


def act(
    context: typer.Context,
    config_path: ConfigPath = None,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    ready_file: ReadyFile = None,
    log_format: LogFormatOption = LogFormat.PRETTY,
    record: Annotated[
        Path | None, typer.Option("--record", help="Record demonstrations into this file instead of joining a run.")
    ] = None,
    policy: Annotated[str, typer.Option("--policy", help="Who demonstrates; with --record.")] = "oracle",
    policy_settings: PolicySettings = None,
    server: Server = None,
    tasks: TaskFile = None,
    num_episodes: Annotated[
        int | None, typer.Option("--num-episodes", min=1, help="Demonstrations; default: one per task.")
    ] = None,
    max_turns: MaxTurns = 0,
    seed: Seed = 0,
    with_progress: Annotated[bool, typer.Option("--with-progress", help="Record progress too.")] = False,
    knobs: Knobs = None,
    max_broken_share: MaxBrokenShare = DEFAULT_MAX_BROKEN_SHARE,
) -> None:
    """Play episodes for a learner, or record demonstrations with --record."""
    if record is None:
        because = "the learner says what a pool plays; it belongs to --record FILE"
        refuse_given(context, _RECORDING, because=because)
    else:
        refuse_given(context, ["ready_file"], because="--record serves nobody")
    config = begin(
        ActConfig,
        table="act",
        path=config_path,
        overrides=with_server(overrides, server),
        dry_run=dry_run,
        log_format=log_format,
    )
    if record is None:
        from clients.act import run_pool  # after parsing: --help must not wait for grpc and the tokenizer

        raise typer.Exit(run_pool(config, ready_file=ready_file))
    if tasks is None:
        raise ConfigError("--record needs --tasks FILE; write one with `longturn envs tasks --out FILE`")
    from clients.panel import PanelOptions

    _record(
        config,
        record,
        policy=policy,
        settings=_settings(policy_settings),
        tasks=tasks,
        num_episodes=num_episodes,
        options=PanelOptions(
            seed=seed, concurrency=config.num_actors, max_turns=max_turns, with_progress=with_progress
        ),
        knobs=_texts(knobs, "--knob"),
        max_broken_share=max_broken_share,
    )


def _record(
    config: ActConfig,
    path: Path,
    *,
    policy: str,
    settings: dict[str, KnobValue],
    tasks: Path,
    num_episodes: int | None,
    options: PanelOptions,
    knobs: dict[str, KnobValue],
    max_broken_share: float,
) -> None:
    from clients.broken import broken_games, tell_and_judge
    from clients.evaluate import write_trajectories
    from clients.evaluation import summarise
    from clients.policies.selection import make_text_policy
    from clients.progress import episode_progress
    from clients.recording import play_demonstrations
    from longturn.task_file import read_tasks

    entries = read_tasks(tasks)
    count = num_episodes or len(entries)
    with episode_progress(f"recording {policy}") as progress:
        progress.expect(count)
        work = play_demonstrations(
            entries,
            make_text_policy(policy, settings),
            num_episodes=count,
            env_server=config.env_server,
            options=options,
            knobs=knobs,
            on_outcome=progress.add,
        )
        outcomes = asyncio.run(work)
    broken = broken_games(outcomes)
    # Before the file is written: it stays as it was if too many broke.
    tell_and_judge(broken, count, max_broken_share=max_broken_share)
    write_trajectories(path, outcomes)
    _show(summarise(outcomes), title=f"{count - len(broken)} demonstrations by {policy} in {path}")


def evaluate(
    context: typer.Context,
    policy: Annotated[
        str, typer.Option("--policy", help="random, oracle, scripted:FILE, a demonstrator, or engine addresses.")
    ],
    config_path: ConfigPath = None,
    overrides: Overrides = None,
    log_format: LogFormatOption = LogFormat.PRETTY,
    server: Server = None,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="tokenizer.json or its folder; needed for engines.")
    ] = None,
    api_key: Annotated[
        str, typer.Option("--api-key", envvar="LONGTURN_ENGINE_KEY", help="The engines' key.", show_envvar=True)
    ] = "",
    policy_settings: PolicySettings = None,
    tasks: TaskFile = None,
    environment: Environment = "",
    split: Split = "test",
    filters: Filters = None,
    skip: Skip = 0,
    limit: Limit = None,
    task_seed: TaskSeed = 0,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0: greedy.")] = 1.0,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="Most tokens per turn.")] = 64,
    max_episode_tokens: Annotated[
        int, typer.Option("--max-episode-tokens", min=0, help="Most tokens per episode; 0: no limit.")
    ] = 0,
    max_turns: MaxTurns = 0,
    concurrency: Concurrency = 32,
    seed: Seed = 0,
    knobs: Knobs = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write totals and every episode to this JSON file.")] = None,
    record: Annotated[Path | None, typer.Option("--record", help="Write the trajectories to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Play a fixed panel once and print success with its 95 % Wilson interval."""
    from clients.evaluate import PolicyChoice
    from clients.panel import PanelOptions

    choice = PolicyChoice(
        name=policy,
        settings=_settings(policy_settings),
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        max_episode_tokens=max_episode_tokens,
        api_key=api_key,
    )
    _refuse_idle_flags(context, choice, has_task_file=tasks is not None)
    config = _eval_config(config_path, overrides, server, tokenizer, log_format)
    panel = _panel(
        tasks,
        environment,
        split,
        filters,
        skip=skip,
        limit=limit,
        task_seed=task_seed,
        knobs=_all_knobs(config, knobs),
    )
    options = PanelOptions(seed=seed, concurrency=concurrency, max_turns=max_turns)
    evaluation, outcomes = _evaluated(config, choice, panel, options)
    facts: dict[str, object] = {
        "policy": policy,
        "temperature": temperature if choice.engine_urls else None,
        "seed": seed,
        "max_turns": max_turns,
    }
    _write(evaluation, outcomes, facts, out=out, record=record)
    _report(evaluation, facts, as_json=as_json)
    if evaluation.failed:
        raise typer.Exit(1)


def _evaluated(
    config: EvalConfig, choice: PolicyChoice, panel: PanelChoice, options: PanelOptions
) -> tuple[Evaluation, list[Outcome]]:
    """Play the panel, showing how far it is."""
    from clients.evaluate import run_evaluation
    from clients.progress import episode_progress

    with episode_progress(f"evaluating {choice.name}") as progress:
        work = run_evaluation(config, choice, panel, options, on_start=progress.expect, on_outcome=progress.add)
        return asyncio.run(work)


def _refuse_idle_flags(context: typer.Context, choice: PolicyChoice, *, has_task_file: bool) -> None:
    """Refuse flags of `eval` that would do nothing with this policy, or with a task file."""
    if choice.engine_urls:
        refuse_given(context, ["policy_settings"], because="an engine has no settings of a text policy")
    else:
        refuse_given(context, _SAMPLING, because=f"the text policy {choice.name} asks no engine")
    if has_task_file:
        refuse_given(context, _LISTING, because="--tasks FILE names the tasks, with their seeds")


def _report(evaluation: Evaluation, facts: Mapping[str, object], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({**facts, **evaluation.to_json()}))
    else:
        temperature = facts["temperature"]
        of_engines = "" if temperature is None else f" at temperature {temperature:g}"
        _show(evaluation, title=f"{facts['policy']}{of_engines}")


def _write(
    evaluation: Evaluation,
    outcomes: Sequence[Outcome],
    facts: Mapping[str, object],
    *,
    out: Path | None,
    record: Path | None,
) -> None:
    from clients.evaluate import write_results, write_trajectories

    if out is not None:
        write_results(out, evaluation, outcomes, facts)
    if record is not None:
        write_trajectories(record, outcomes)


def play(
    context: typer.Context,
    environment: Annotated[str, typer.Option("--env", help="Environment to play.")],
    task_id: Annotated[str, typer.Option("--task", help="Task id; default: the first of the split.")] = "",
    split: Split = "train",
    filters: Filters = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the episode.")] = 0,
    max_turns: MaxTurns = 0,
    oracle: Annotated[bool, typer.Option("--oracle", help="Show what the environment's expert would do.")] = False,
    config_path: ConfigPath = None,
    overrides: Overrides = None,
    server: Server = None,
) -> None:
    """Play a game by hand."""
    if task_id:
        refuse_given(context, ["split", "filters"], because="--task names the task")
    from clients.play import play_by_hand

    config = _eval_config(config_path, overrides, server, None, LogFormat.PRETTY)
    play_by_hand(
        config.env_server,
        environment=environment,
        task_id=task_id,
        split=split,
        filters=_pairs(filters, "--filter"),
        seed=seed,
        max_turns=max_turns,
        with_oracle=oracle,
    )


envs = typer.Typer(name="envs", help="What an env server offers.", no_args_is_help=True, add_completion=False)


@envs.command("list")
def list_environments(
    server: Server = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    config_path: ConfigPath = None,
    overrides: Overrides = None,
) -> None:
    """List the environments of a server."""
    from clients.listing import show_environments

    config = _eval_config(config_path, overrides, server, None, LogFormat.PRETTY)
    show_environments(config.env_server, as_json=as_json)


@envs.command("tasks")
def list_tasks(
    context: typer.Context,
    environment: Annotated[str, typer.Option("--env", help="Environment.")],
    split: Split = "train",
    filters: Filters = None,
    skip: Skip = 0,
    limit: Limit = None,
    mix: Annotated[
        list[str] | None,
        typer.Option("--mix", help="Tasks of one kind, a JSON object of filters, num_tasks and skip; repeatable."),
    ] = None,
    task_seed: TaskSeed = 0,
    knobs: Knobs = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write a task file; default: print it.")] = None,
    append: Annotated[bool, typer.Option("--append", help="Add to the file instead of replacing it.")] = False,
    server: Server = None,
    config_path: ConfigPath = None,
    overrides: Overrides = None,
) -> None:
    """List tasks as the lines of a task file."""
    if out is None:
        refuse_given(context, ["append"], because="without --out the tasks are printed")
    if mix:
        refuse_given(context, ["filters", "skip", "limit"], because="--mix names filters, skip and num_tasks")
    from clients.listing import write_entries
    from longturn.task_mix import mix_from_json

    config = _eval_config(config_path, overrides, server, None, LogFormat.PRETTY)
    panel = _panel(
        None,
        environment,
        split,
        filters,
        skip=skip,
        limit=limit,
        task_seed=task_seed,
        knobs=_all_knobs(config, knobs),
    )
    parts = [mix_from_json(text) for text in mix or ()]
    panels = [dataclasses.replace(panel, filters=part.filters, skip=part.skip, limit=part.num_tasks) for part in parts]
    write_entries(config.env_server, panels or [panel], out=out, append=append)


@envs.command("prepare")
def prepare_tasks(
    tasks: Annotated[Path, typer.Option("--tasks", help="Task file (JSONL).")],
    concurrency: Concurrency = 4,
    max_broken_share: MaxBrokenShare = DEFAULT_MAX_BROKEN_SHARE,
    server: Server = None,
    config_path: ConfigPath = None,
    overrides: Overrides = None,
) -> None:
    """Have the server make everything that a task file's episodes need, such as generated games."""
    from clients.listing import prepare
    from longturn.task_file import read_tasks

    config = _eval_config(config_path, overrides, server, None, LogFormat.PRETTY)
    prepare(config.env_server, read_tasks(tasks), concurrency=concurrency, max_broken_share=max_broken_share)


@envs.command("check")
def check_environment(
    name: Annotated[str, typer.Argument(help="Environment, by name or package.module:Class.")],
    only: Annotated[list[str] | None, typer.Option("--only", help="Run this check; repeatable.")] = None,
    knobs: Annotated[list[str] | None, typer.Option("--knob", help="name=value of every episode; repeatable.")] = None,
    filters: Filters = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of all episodes and actions.")] = 0,
    tasks_per_split: Annotated[int, typer.Option("--tasks-per-split", min=1, help="Tasks played of every split.")] = 2,
    neighbours: Annotated[int, typer.Option("--neighbours", min=1, help="Episodes beside the one looked at.")] = 64,
    random_episodes: Annotated[int, typer.Option("--random-episodes", min=1, help="Episodes played at random.")] = 24,
    resets: Annotated[int, typer.Option("--resets", min=1, help="Resets over which nothing may grow.")] = 2000,
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="Time after which the resets end.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Check that an environment keeps what every environment promises; exit code 1 if a check fails."""
    from clients.conformance.report import print_json, print_line
    from clients.conformance.subject import SuiteOptions
    from clients.conformance.suite import check_environment as run_suite

    configure_logging(LogFormat.PRETTY, daemon="check")
    options = SuiteOptions(
        seed=seed,
        knobs=_values(knobs, "--knob"),
        filters=_pairs(filters, "--filter"),
        tasks_per_split=tasks_per_split,
        num_neighbours=neighbours,
        num_random_episodes=random_episodes,
        num_resets=resets,
        seconds=seconds,
    )
    report = run_suite(name, options, names=only or (), on_report=(lambda line: None) if as_json else print_line)
    if as_json:
        print_json(report)
    if not report.has_passed:
        raise typer.Exit(1)


@envs.command("new")
def new_environment(
    name: Annotated[str, typer.Argument(help="Name of the environment: lower case letters, digits and _.")],
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Folder to make; default: the name, in the current folder.")
    ] = None,
) -> None:
    """Write a package with an environment of your own that passes `longturn envs check`."""
    from clients.scaffold import write_scaffold

    written = write_scaffold(name, folder or Path(name))
    for path in written:
        typer.echo(str(path))
    root = written[0].parent
    typer.echo(f"next: pip install -e {root} && longturn envs check {name} && pytest {root}", err=True)


def _eval_config(
    path: Path | None,
    overrides: Sequence[str] | None,
    server: str | None,
    tokenizer: Path | None,
    log_format: LogFormat,
) -> EvalConfig:
    chosen = with_server(overrides, server)
    if tokenizer:
        chosen.append(spell_override("renderer.tokenizer", tokenizer))
    configure_logging(log_format, daemon="eval")
    return load_config(EvalConfig, table="eval", path=path, overrides=chosen)


def _panel(
    tasks: Path | None,
    environment: str,
    split: str,
    filters: Sequence[str] | None,
    *,
    skip: int,
    limit: int | None,
    task_seed: int,
    knobs: Mapping[str, KnobValue],
) -> PanelChoice:
    from clients.evaluate import PanelChoice
    from longturn.task_file import read_tasks

    if tasks is None and not environment:
        raise ConfigError("name what to play: --tasks FILE, or --env NAME with --split and --filter")
    return PanelChoice(
        tasks=read_tasks(tasks) if tasks else (),
        environment=environment,
        split=split,
        filters=_pairs(filters, "--filter"),
        skip=skip,
        limit=limit,
        task_seed=task_seed,
        knobs=knobs,
    )


def _all_knobs(config: EvalConfig, texts: Sequence[str] | None) -> dict[str, KnobValue]:
    """Knobs of the settings; those of the command line come before them."""
    return {**config.knobs, **_texts(texts, "--knob")}


def _texts(texts: Sequence[str] | None, option: str) -> dict[str, KnobValue]:
    return dict(_pairs(texts, option))


def _pairs(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts or ():
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise ConfigError(f"{option} {text!r} has not the form name=value")
        pairs[name] = value
    return pairs


def _settings(texts: Sequence[str] | None) -> dict[str, KnobValue]:
    return _values(texts, "--policy-set")


def _values(texts: Sequence[str] | None, option: str) -> dict[str, KnobValue]:
    return {name: _value(text) for name, text in _pairs(texts, option).items()}


def _value(text: str) -> KnobValue:
    value = parse_value(text)
    return value if isinstance(value, bool | int | float | str) else text


def _show(evaluation: Evaluation, *, title: str) -> None:
    from rich.console import Console

    from clients.progress import score_table

    Console(file=sys.stdout).print(score_table(evaluation, title=title))
