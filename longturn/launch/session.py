"""One start of the launcher: makes or finds the run folder, supervises the phases, and leaves no process behind."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import tomli_w
from rich.console import Console

from longturn.config import Tree
from longturn.errors import ConfigError, LongturnError
from longturn.launch.command_lines import CommandLines
from longturn.launch.crew import Crew
from longturn.launch.document import LaunchConfig, document_digest, read_document, write_run_config
from longturn.launch.layout import RunLayout, held
from longturn.launch.phases import PhaseLog
from longturn.launch.pipeline import Run
from longturn.launch.reuse import check_same_start, copy_warm_start
from longturn.launch.screen import Screen
from longturn.launch.supervisor import InterruptedRunError, Supervisor
from longturn.launch.table import show_result
from longturn.report.page import write_report
from longturn.report.summary import write_summary

_INTERRUPTED = 130


def new_run(
    config: Path | None,
    *,
    name: str | None,
    seed: int | None,
    overrides: Sequence[str],
    warm_start: Path | None = None,
) -> RunLayout:
    """Make the folder of a new run, with its settings in it; refuses one that exists.

    `warm_start` is the folder of a run whose warm start, made with the same settings and seed, is taken over.
    """
    if config is None:
        raise ConfigError("name the settings with --config FILE, or a run to go on with by --resume FOLDER")
    given = [f'run.name="{name}"'] if name is not None else []
    given += [f"run.seed={seed}"] if seed is not None else []
    document = read_document(config, [*overrides, *given])
    # Checked before the folder is made: a refused setting leaves nothing behind.
    settings = LaunchConfig(config, [*overrides, *given])
    layout = RunLayout((settings.run.folder / settings.run.name).resolve())
    if layout.config.exists():
        raise ConfigError(
            f"the run {settings.run.folder / settings.run.name} exists; go on with `longturn train --resume"
            f" {settings.run.folder / settings.run.name}`, or choose another --run"
        )
    source = None if warm_start is None else _start_of(warm_start, document, settings.run.seed)
    with held(layout):
        _write_facts(layout, document, settings)
        if source is not None:
            copy_warm_start(source, layout)
        write_run_config(document, layout, seed=settings.run.seed)
    return layout


def _start_of(folder: Path, document: Tree, seed: int) -> RunLayout:
    source = resumed_run(folder, has_settings=False)
    check_same_start(document, seed, source, json.loads(source.facts.read_text(encoding="utf-8"))["seed"])
    return source


def resumed_run(folder: Path, *, has_settings: bool) -> RunLayout:
    """Find the run to go on with."""
    if has_settings:
        raise ConfigError("a resumed run keeps its settings: give --resume alone, or start a new run with --run")
    layout = RunLayout(folder.resolve())
    if not layout.config.is_file():
        raise ConfigError(f"{folder} holds no config.toml, so it is no run; start one with `longturn train --config`")
    return layout


def launch(layout: RunLayout, work: Callable[[Run], None], console: Console) -> int:
    """Run the phases of `work`; the exit code."""
    hint = f"longturn train --resume {_shown(layout.folder)}"
    with held(layout), _stop_requests() as stop:
        try:
            _supervise(layout, work, console, stop)
        except InterruptedRunError:
            console.print(f"stopped; go on with: {hint}", soft_wrap=True)
            return _INTERRUPTED
        except LongturnError as error:
            if layout.settings_checked.exists():
                raise type(error)(f"{error}\nonce that is mended, go on with: {hint}") from error
            # A resumed run keeps its settings, so one whose settings were refused could never be mended.
            layout.config.unlink()
            raise
    return 0


def _supervise(layout: RunLayout, work: Callable[[Run], None], console: Console, stop: StopRequests) -> None:
    settings = LaunchConfig(layout.config)
    commands = CommandLines(layout)
    with (
        Screen(console) as screen,
        Supervisor(wait=stop.wait, say=screen.say, grace_s=settings.run.grace_s) as supervisor,
    ):
        screen.say(f"run folder: {_shown(layout.folder)}")
        crew = Crew(supervisor, commands, layout, settings.run)
        phases = PhaseLog(layout.phases, say=screen.say)
        try:
            work(
                Run(
                    layout=layout,
                    config=settings,
                    supervisor=supervisor,
                    crew=crew,
                    commands=commands,
                    phases=phases,
                    screen=screen,
                )
            )
        finally:
            _count_restarts(layout, supervisor)
    summary = write_summary(layout.folder)
    if summary["held_out"]["after"] is not None:
        show_result(console, summary, _shown(write_report(layout.folder)))


def _write_facts(layout: RunLayout, document: Tree, settings: LaunchConfig) -> None:
    layout.source.write_text(tomli_w.dumps(document), encoding="utf-8")
    facts = {
        "run": settings.run.name,
        "seed": settings.run.seed,
        "config_digest": document_digest(document),
        "restarts": {},
    }
    layout.facts.write_text(json.dumps(facts, indent=1), encoding="utf-8")


def _count_restarts(layout: RunLayout, supervisor: Supervisor) -> None:
    facts = json.loads(layout.facts.read_text(encoding="utf-8"))
    for name, number in supervisor.num_restarts.items():
        facts["restarts"][name] = facts["restarts"].get(name, 0) + number
    layout.facts.write_text(json.dumps(facts, indent=1), encoding="utf-8")


class StopRequests:
    """Whether SIGINT or SIGTERM came. Free of locks: a handler runs on the very thread that waits."""

    def __init__(self) -> None:
        self._came = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        self._came = True

    def wait(self, seconds: float) -> bool:
        """Sleep, then say whether one came."""
        if not self._came:
            time.sleep(seconds)
        return self._came


@contextmanager
def _stop_requests() -> Iterator[StopRequests]:
    """What SIGINT and SIGTERM are noted in."""
    stop = StopRequests()
    before = {number: signal.signal(number, stop.note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _shown(path: Path) -> str:
    """A path as short as it may be from here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
