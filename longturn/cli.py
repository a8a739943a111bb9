"""The `longturn` command: a shell that finds each plane's commands by entry point and imports no plane itself."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, entry_points

import typer
from rich.console import Console

from longturn.errors import LongturnError
from longturn.extras import extra_for, how_to_install


def build_app() -> typer.Typer:
    """Register every command found under the entry point group `longturn.commands`."""
    app = typer.Typer(
        name="longturn",
        help="Train and evaluate language-model agents on text environments that take thirty turns and more.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    for entry_point in sorted(entry_points(group="longturn.commands"), key=lambda point: point.name):
        _register(app, entry_point)
    return app


def _register(app: typer.Typer, entry_point: EntryPoint) -> None:
    command = entry_point.load()
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=entry_point.name)
    else:
        app.command(entry_point.name)(command)


def main() -> None:
    """Run the command line; a failure the user can mend is one line and exit code 2."""
    run_command(build_app())


def run_command(app: typer.Typer) -> None:
    """Run a Typer app and turn LongturnError and a missing extra into one clear line and exit code 2."""
    try:
        app()
    except LongturnError as error:
        fail(str(error))
    except ModuleNotFoundError as error:
        extra = extra_for(error)
        if extra is None:
            raise
        fail(f"{error.name} is not installed; {how_to_install(extra)}")


def run_single(command: object, name: str) -> None:
    """Run one command as a program of its own, for `python -m PLANE`."""
    app = typer.Typer(name=name, add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)  # type: ignore[arg-type,type-var]  # any callback Typer accepts
    run_command(app)


def fail(message: str) -> None:
    """Print one line to stderr and exit with code 2."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"longturn: {message}", markup=False)
    sys.exit(2)
