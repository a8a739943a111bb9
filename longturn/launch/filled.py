"""Settings that the launcher fills in itself. A user's own value would be lost, so it is refused."""

from __future__ import annotations

from collections.abc import Mapping

from longturn.config import Tree
from longturn.errors import ConfigError
from longturn.launch.layout import RunLayout

_SEED = "set run.seed, or give --seed"
_FOLDER = "set run.folder and run.name; everything of a run lies in its folder"
_POLICY = "leave it out; a run plays and trains its own warm start, and imitate.base_model is what that starts from"
_TOKENIZER = "leave it out; a run renders with its warm start's tokenizer, and imitate.tokenizer_path sets that"
_DISPATCH = "leave it out; learner and actors meet at a socket in the run's folder"
_SERVER = "set env_server.host and env_server.port; the launcher starts the env server and passes its address on"
_KEY = "leave it out; every run makes a key of its own"

INSTEAD: Mapping[str, str] = {
    "engine.model_path": _POLICY,
    "engine.weight_version": "leave it out; the learner counts the versions",
    "engine.weights_root": _FOLDER,
    "engine.api_key": _KEY,
    "engine.api_key_file": _KEY,
    "act.run_dir": _FOLDER,
    "act.renderer.tokenizer": _TOKENIZER,
    "act.dispatch.address": _DISPATCH,
    "act.env_server.address": _SERVER,
    "eval.renderer.tokenizer": _TOKENIZER,
    "eval.env_server.address": _SERVER,
    "imitate.seed": _SEED,
    "imitate.out": _FOLDER,
    "learner.run_dir": _FOLDER,
    "learner.seed": _SEED,
    "learner.model.path": _POLICY,
    "learner.tasks.path": "set tasks.train",
    "learner.evaluation.path": "set tasks.valid",
    "learner.dispatch.address": _DISPATCH,
    "learner.publish.engines": (
        "set [engine], or run.engine_urls for engines started elsewhere; the launcher passes their addresses on"
    ),
}
"""What to do instead of setting each."""


def refuse_filled(document: Tree) -> None:
    """Raise ConfigError naming every setting of the document that the launcher fills in, and what to set instead."""
    given = [setting for setting in INSTEAD if _holds(document, setting)]
    if given:
        raise ConfigError("; ".join(f"{setting} is filled in by the launcher: {INSTEAD[setting]}" for setting in given))


def filled_settings(layout: RunLayout, *, dispatch_address: str, seed: int) -> Tree:
    """What config.toml holds besides the user's settings; addresses and versions follow on the command lines."""
    tokenizer = {"tokenizer": str(layout.warm_start)}
    return {
        "engine": {
            "model_path": str(layout.warm_start),
            "weights_root": str(layout.folder / "weights"),
            "api_key_file": str(layout.engine_key),
        },
        "act": {"run_dir": str(layout.folder), "renderer": tokenizer, "dispatch": {"address": dispatch_address}},
        "eval": {"renderer": tokenizer},
        "learner": {
            "run_dir": str(layout.folder),
            "seed": seed,
            "model": {"path": str(layout.warm_start)},
            "tasks": {"path": str(layout.tasks("train"))},
            "evaluation": {"path": str(layout.tasks("valid"))},
            "dispatch": {"address": dispatch_address},
        },
    }


def _holds(document: Tree, setting: str) -> bool:
    branch: object = document
    for key in setting.split("."):
        if not isinstance(branch, dict) or key not in branch:
            return False
        branch = branch[key]  # type: ignore[reportUnknownVariableType]  # TOML's tables
    return True
