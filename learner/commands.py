"""Commands of the learner. Loads no torch: `--help` and `--dry-run` answer at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from learner.config import LearnConfig
from learner.imitation.config import ImitateConfig
from learner.state import EndReason
from longturn.errors import LongturnError
from longturn.logs import LogFormat
from longturn.options import ConfigPath, DryRun, LogFormatOption, Overrides, ReadyFile, begin, refuse_given

_FAILURES = {
    EndReason.NO_GROUPS: "for want of complete groups: the log says why groups failed",
    EndReason.NON_FINITE: "because scores or gradients were not finite: lower learner.optimizer.learning_rate",
}


def learn(
    context: typer.Context,
    config: ConfigPath = None,
    overrides: Overrides = None,
    resume: Annotated[
        str, typer.Option("--resume", help="auto: from the newest complete checkpoint; never; or a checkpoint folder.")
    ] = "auto",
    imitate: Annotated[
        Path | None,
        typer.Option("--imitate", help="Imitate the demonstrations in this file instead of training by reward."),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option("--replay", help="Train on the batches in this run's ledger, without pools or engines."),
    ] = None,
    ready_file: ReadyFile = None,
    dry_run: DryRun = False,
    log_format: LogFormatOption = LogFormat.PRETTY,
) -> None:
    """Train a policy from the episodes that actor pools hand in."""
    if imitate is not None:
        refuse_given(context, ["resume", "ready_file", "replay"], because="imitation starts anew and serves nobody")
        imitation = begin(
            ImitateConfig, table="imitate", path=config, overrides=overrides, dry_run=dry_run, log_format=log_format
        )
        from learner.imitation.command import run_imitation  # after parsing: it loads torch

        run_imitation(imitate, imitation)
        return
    settings = begin(
        LearnConfig, table="learner", path=config, overrides=overrides, dry_run=dry_run, log_format=log_format
    )
    if replay is not None:
        refuse_given(context, ["ready_file"], because="a replay serves nobody")
        from learner.replay import replay as run_replay  # after parsing: it loads torch

        reason = run_replay(settings, replay, resume=resume)
    else:
        from learner.session import learn as run_learner  # after parsing: it loads torch

        reason = run_learner(settings, resume=resume, ready_file=ready_file)
    if reason is EndReason.STOPPED:
        raise typer.Exit(130)
    if reason is EndReason.REPETITION:
        raise LongturnError(
            "the run ended with REPETITION: completions repeat one token; resume from an older checkpoint with "
            "--resume FOLDER and another setting, such as a lower learner.optimizer.learning_rate, or set "
            "learner.alarms.on_repetition=log",
            reason=reason.value,
        )
    if reason in _FAILURES:
        raise LongturnError(
            f"the run ended with {reason}: learner.stop.max_skipped_in_a_row = {settings.stop.max_skipped_in_a_row} "
            f"batches in a row were not trained, {_FAILURES[reason]}; to go on from where it is, "
            f"{_raised(settings, config)}",
            reason=reason.value,
        )


def _raised(settings: LearnConfig, config: Path | None) -> str:
    """How a resumed run gets past the rule: the skipped batches are counted in its checkpoint."""
    wanted = f"learner.stop.max_skipped_in_a_row={2 * settings.stop.max_skipped_in_a_row}"
    start = "start again with" if config is None else f"set it higher in {config}, or start again with"
    return f"{start} --set {wanted}"
