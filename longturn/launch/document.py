"""The TOML document of a run: the user's settings, checked for unknown tables, with the run's paths filled in."""

from __future__ import annotations

import copy
import hashlib
import json
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path

from longturn.config import Tree, apply_override, load_config, read_toml
from longturn.disk import naming
from longturn.errors import ConfigError
from longturn.launch.config import EvaluationConfig, RunConfig, TasksConfig, WarmstartConfig
from longturn.launch.filled import filled_settings
from longturn.launch.layout import RunLayout
from longturn.nearest import nearest_name

TABLES = ("run", "tasks", "warmstart", "imitate", "evaluation", "env_server", "engine", "act", "eval", "learner")


def read_document(path: Path, overrides: Sequence[str]) -> Tree:
    """The file with overrides such as `learner.batch.num_batches=3` applied; unknown tables are refused."""
    document = read_toml(path)
    for override in overrides:
        apply_override(document, override)
    for table in document:
        if table not in TABLES:
            nearest = nearest_name(table, TABLES)
            hint = f", did you mean [{nearest}]?" if nearest else f"; known are {', '.join(TABLES)}"
            raise ConfigError(f"{path}: unknown table [{table}]{hint}")
        _table(document, table)
    return document


def run_document(document: Tree, layout: RunLayout, *, seed: int) -> Tree:
    """What config.toml holds: the user's settings, and the paths, seeds and sockets of this run."""
    dispatch_address = layout.dispatch_address or f"tcp://127.0.0.1:{_free_port()}"
    settings = filled_settings(layout, dispatch_address=dispatch_address, seed=seed)
    filled = _merged(copy.deepcopy(document), settings)
    for table in ("env_server", "engine"):
        _table(filled, table).setdefault("port", 0)
    return filled


def write_engine_key(layout: RunLayout, config: RunConfig) -> None:
    """Write the key of the run's engines, readable by its owner alone: a fresh one, or that of engines elsewhere."""
    key = secrets.token_urlsafe(32)
    if config.engine_urls:
        key = _outside_key(config.engine_api_key_file)
    with naming(layout.engine_key):
        layout.engine_key.touch(mode=0o600)
        layout.engine_key.chmod(0o600)
        layout.engine_key.write_text(key, encoding="utf-8")


def _outside_key(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"run.engine_api_key_file: {path} cannot be read: {error.strerror}") from error


def imitation_steps(config: Path) -> float:
    """How many updates the imitation was told to make; 0, which shows no bar, where that is left to its default."""
    table = read_toml(config).get("imitate", {})
    steps = table.get("steps", 0) if isinstance(table, dict) else 0
    return float(steps) if isinstance(steps, int) else 0.0


def document_digest(document: Tree) -> str:
    """Twelve hex digits that change whenever a setting changes; the run's name and folder do not count."""
    counted = {table: content for table, content in document.items() if table != "run"}
    return hashlib.sha256(json.dumps(counted, sort_keys=True, default=str).encode()).hexdigest()[:12]


class LaunchConfig:
    """The launcher's own tables."""

    def __init__(self, path: Path, overrides: Sequence[str] = ()) -> None:
        """Read them from a file with overrides; raises ConfigError naming the offending setting."""
        by_table = {table: [text for text in overrides if text.startswith(f"{table}.")] for table in TABLES}
        self.run = load_config(RunConfig, table="run", path=path, overrides=by_table["run"])
        self.tasks = load_config(TasksConfig, table="tasks", path=path, overrides=by_table["tasks"])
        self.warmstart = load_config(WarmstartConfig, table="warmstart", path=path, overrides=by_table["warmstart"])
        self.evaluation = load_config(EvaluationConfig, table="evaluation", path=path, overrides=by_table["evaluation"])


def _merged(document: Tree, filled: Tree) -> Tree:
    merged = dict(document)
    for name, value in filled.items():
        if isinstance(value, dict):
            merged[name] = _merged(_table(merged, name), value)
        else:
            merged[name] = value
    return merged


def _table(document: Tree, name: str) -> Tree:
    table = document.setdefault(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{name} must be a table, such as [{name}]")
    return table


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
