"""`longturn engine`, also `python -m local_engine`."""

from __future__ import annotations

from longturn.logs import LogFormat
from longturn.options import ConfigPath, DryRun, LogFormatOption, Overrides, ReadyFile, begin


def engine(
    config: ConfigPath = None,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    ready_file: ReadyFile = None,
    log_format: LogFormatOption = LogFormat.PRETTY,
) -> None:
    """Serve a model over HTTP in SGLang's dialect: continuous batching, prefix reuse, weights swapped in place."""
    from local_engine.config import EngineConfig

    settings = begin(
        EngineConfig, table="engine", path=config, overrides=overrides, dry_run=dry_run, log_format=log_format
    )
    from local_engine.serve import run  # after parsing: --help must not wait for torch

    run(settings, ready_file=ready_file)
