"""One start of the launcher: makes or finds the run folder, supervises the phases, and leaves no process behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import tomli_w
from rich.console import Console

from longturn.config import Tree, spell_override
from longturn.disk import DiskError, naming, read_json, write_json, write_whole
from longturn.errors import ConfigError, LongturnError
from longturn.launch.command_lines import CommandLines
from longturn.launch.config import RunConfig
from longturn.launch.daemons import Daemons
from longturn.launch.document import (
    LaunchConfig,
    document_digest,
    read_document,
    run_document,
    write_engine_key,
)
from longturn.launch.filled import refuse_filled
from longturn.launch.layout import RunLayout, held
from longturn.launch.phases import PhaseLog
from longturn.launch.pipeline import FinalError, Run
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
    command: str,
    warm_start: Path | None = None,
) -> RunLayout:
    """Make the folder of a new run of `longturn COMMAND`, with its settings in it; refuses one that exists.

    `warm_start` is the folder of a run whose warm start, made with the same settings and seed, is taken over.
    """
    if config is None:
        raise ConfigError("name the settings with --config FILE, or a run to go on with by --resume FOLDER")
    flags = {"run.name": name, "run.seed": seed}
    given = [spell_override(setting, value) for setting, value in flags.items() if value is not None]
    document = read_document(config, [*overrides, *given])
    refuse_filled(document)
    # Checked before the folder is made: a refused setting leaves nothing behind.
    settings = LaunchConfig(config, [*overrides, *given])
    folder = settings.run.folder / settings.run.name
    layout = RunLayout(folder.resolve())
    if layout.config.exists():
        raise ConfigError(f"the run {folder} exists; go on with `{_resume(layout, command)}`, or choose another --run")
    source = None if warm_start is None else _start_of(warm_start, document, settings.run.seed)
    with held(layout):
        if source is not None:
            copy_warm_start(source, layout)
        _write_run(layout, document, settings)
    return layout


def _start_of(folder: Path, document: Tree, seed: int) -> RunLayout:
    source = resumed_run(folder, has_settings=False)
    if not source.source.is_file():
        raise ConfigError(
            f"{source.source} is missing, so nobody can say which settings its warm start was made with; restore it, or"
            " leave --warm-start out"
        )
    check_same_start(document, seed, source, LaunchConfig(source.source).run.seed)
    return source


def resumed_run(folder: Path, *, has_settings: bool) -> RunLayout:
    """Find the run to go on with."""
    if has_settings:
        raise ConfigError("a resumed run keeps its settings: give --resume alone, or start a new run with --run")
    layout = RunLayout(folder.resolve())
    if not layout.config.is_file():
        raise ConfigError(f"{folder} holds no config.toml, so it is no run; start one with `longturn train --config`")
    return layout


def launch(layout: RunLayout, work: Callable[[Run], None], console: Console, *, command: str) -> int:
    """Run the phases of `work` for `longturn COMMAND`; the exit code."""
    with held(layout), _stop_requests() as stop:
        try:
            with naming(layout.folder):
                _supervise(layout, work, console, stop)
        except InterruptedRunError:
            console.print(f"stopped; go on with: {_resume(layout, command)}", soft_wrap=True)
            return _INTERRUPTED
        except LongturnError as error:
            if not layout.is_begun:
                # Nothing was done yet, and the name of a run whose settings were refused is to be free again.
                layout.config.unlink()
                raise
            if isinstance(error, FinalError):
                raise
            raise LongturnError(f"{error}\n{_way_on(layout, command)}", reason=error.reason) from error
    return 0


def _resume(layout: RunLayout, command: str) -> str:
    return f"longturn {command} --resume {_shown(layout.folder)}"


def _way_on(layout: RunLayout, command: str) -> str:
    return f"once that is mended (this run's settings: {_shown(layout.config)}), go on with: {_resume(layout, command)}"


def _supervise(layout: RunLayout, work: Callable[[Run], None], console: Console, stop: StopRequests) -> None:
    settings = LaunchConfig(layout.config)
    commands = CommandLines(layout)
    with (
        Screen(console) as screen,
        Supervisor(wait=stop.wait, say=screen.say, grace_s=settings.run.grace_s) as supervisor,
    ):
        screen.say(f"run folder: {_shown(layout.folder)}")
        _restore_parts(layout, settings.run, screen)
        _note_changes(layout, screen)
        daemons = Daemons(supervisor, commands, layout, settings.run, say=screen.say)
        phases = PhaseLog(layout.phases, say=screen.say)
        try:
            work(
                Run(
                    layout=layout,
                    config=settings,
                    supervisor=supervisor,
                    daemons=daemons,
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


def _write_run(layout: RunLayout, document: Tree, settings: LaunchConfig) -> None:
    """Write what a run folder begins with; config.toml, which makes it a run, comes last."""
    seed = settings.run.seed
    filled = run_document(document, layout, seed=seed)
    write_whole(layout.source, tomli_w.dumps(document))
    write_engine_key(layout, settings.run)
    write_json(layout.facts, _facts(settings.run, document, filled))
    write_whole(layout.config, tomli_w.dumps(filled))


def _facts(run: RunConfig, document: Tree, filled: Tree) -> dict[str, object]:
    return {
        "run": run.name,
        "seed": run.seed,
        "config_digest": document_digest(document),
        "filled_digest": document_digest(filled),
        "restarts": {},
    }


def _restore_parts(layout: RunLayout, run: RunConfig, screen: Screen) -> None:
    """Make again, and say so, what the launcher itself wrote and the settings tell anew."""
    try:
        _read_facts(layout)
    except (ConfigError, DiskError) as error:
        filled = read_document(layout.config, ())
        document = read_document(layout.source, ()) if layout.source.is_file() else filled
        write_json(layout.facts, _facts(run, document, filled))
        screen.say(f"{error}: made again from the settings; earlier restarts and changes of settings are not known")
    if not layout.engine_key.is_file():
        write_engine_key(layout, run)
        screen.say(f"{_shown(layout.engine_key)} was missing: made again")


def _read_facts(layout: RunLayout) -> dict[str, Any]:
    return read_json(layout.facts, mend="remove it: it is made again")


def _note_changes(layout: RunLayout, screen: Screen) -> None:
    """Have settings that were changed by hand since the last start checked again, and the summary say so."""
    facts, digest = _read_facts(layout), document_digest(read_document(layout.config, ()))
    if facts.get("filled_digest", digest) == digest:
        return
    screen.say(f"{_shown(layout.config)} was changed; finished phases are not repeated")
    layout.settings_checked.unlink(missing_ok=True)
    write_json(layout.facts, {**facts, "config_digest": digest, "filled_digest": digest, "settings_changed": True})


def _count_restarts(layout: RunLayout, supervisor: Supervisor) -> None:
    if not supervisor.num_restarts:
        return
    facts = _read_facts(layout)
    for name, number in supervisor.num_restarts.items():
        facts["restarts"][name] = facts["restarts"].get(name, 0) + number
    write_json(layout.facts, facts)


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
