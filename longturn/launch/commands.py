"""`longturn train` and `longturn warmstart`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longturn.options import Overrides

if TYPE_CHECKING:
    from longturn.launch.pipeline import Run

Config = Annotated[Path | None, typer.Option("--config", "-c", help="TOML file with a table per daemon.")]
Name = Annotated[str | None, typer.Option("--run", help="Name of the run; default: run.name of the file.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of the run; default: run.seed of the file.")]
WarmStart = Annotated[
    Path | None, typer.Option("--warm-start", help="Run folder whose warm start, of equal settings, is taken over.")
]
Resume = Annotated[Path | None, typer.Option("--resume", help="Go on with this run folder.")]


def train(
    config: Config = None,
    run: Name = None,
    seed: Seed = None,
    warm_start: WarmStart = None,
    resume: Resume = None,
    overrides: Overrides = None,
) -> None:
    """Train from generated games to a report on this machine, supervising all daemons."""
    from longturn.launch.pipeline import whole_run  # after parsing: --help must not wait for grpc

    _launch("train", whole_run, config, run, seed, resume, overrides or [], warm_start)


def warmstart(
    config: Config = None, run: Name = None, seed: Seed = None, resume: Resume = None, overrides: Overrides = None
) -> None:
    """Record demonstrations and imitate them; ends with a policy that passed the gate."""
    from longturn.launch.pipeline import warm_start  # after parsing: --help must not wait for grpc

    _launch("warmstart", warm_start, config, run, seed, resume, overrides or [])


def _launch(
    command: str,
    work: Callable[[Run], None],
    config: Path | None,
    name: str | None,
    seed: int | None,
    resume: Path | None,
    overrides: list[str],
    warm_start: Path | None = None,
) -> None:
    from rich.console import Console

    from longturn.disk import naming
    from longturn.launch.session import launch, new_run, resumed_run

    with naming(config or resume or Path.cwd()):
        if resume is not None:
            has_settings = bool(config or name or overrides or warm_start or seed is not None)
            layout = resumed_run(resume, has_settings=has_settings)
        else:
            layout = new_run(config, name=name, seed=seed, overrides=overrides, command=command, warm_start=warm_start)
        code = launch(layout, work, Console(highlight=False), command=command)
    raise typer.Exit(code)
