"""What the launcher fills in is never taken from the user in silence."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from clients.config import ActConfig, EvalConfig
from learner.config import LearnConfig
from learner.imitation.config import ImitateConfig
from local_engine.config import EngineConfig
from longturn.config import Config, Tree
from longturn.errors import ConfigError
from longturn.launch.command_lines import CommandLines
from longturn.launch.document import read_document, run_document
from longturn.launch.filled import INSTEAD, filled_settings, refuse_filled
from longturn.launch.layout import RunLayout
from tests.longturn.launch.prepared import ECHO

MODELS: Mapping[str, type[Config]] = {
    "engine": EngineConfig,
    "act": ActConfig,
    "eval": EvalConfig,
    "imitate": ImitateConfig,
    "learner": LearnConfig,
}


def leaves(tree: Mapping[str, object], path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, name))
        else:
            yield ".".join((*path, name))


@pytest.mark.parametrize("setting", INSTEAD)
def test_a_value_of_the_users_own_is_refused_with_what_to_set_instead(setting: str) -> None:
    document = read_document(ECHO, [f"{setting}=1"])
    with pytest.raises(ConfigError) as caught:
        refuse_filled(document)
    assert str(caught.value) == f"{setting} is filled in by the launcher: {INSTEAD[setting]}"


def test_every_filled_setting_is_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"engine\.model_path is .*learner\.seed is .*set run\.seed"):
        refuse_filled(read_document(ECHO, ["learner.seed=1", "engine.model_path=m"]))


def test_a_file_without_them_passes_and_keeps_the_users_settings(tmp_path: Path) -> None:
    document = read_document(ECHO, ["engine.port=7", "learner.dispatch.heartbeat_s=1.5"])
    refuse_filled(document)
    filled = run_document(document, RunLayout(tmp_path), seed=3)
    assert filled["engine"]["port"] == 7  # type: ignore[index]  # tables of TOML
    assert filled["learner"]["dispatch"]["heartbeat_s"] == 1.5  # type: ignore[index]
    assert filled["learner"]["seed"] == 3  # type: ignore[index]
    assert document == read_document(ECHO, ["engine.port=7", "learner.dispatch.heartbeat_s=1.5"])


def test_all_that_the_launcher_fills_in_is_known(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    commands, model = CommandLines(layout), tmp_path / "model"
    lines = (commands.engine(model, "0", None), commands.learner("http://127.0.0.1:1"), commands.imitate(seed=1))
    pairs = [pair for line in lines for pair in itertools.pairwise(line)]
    by_command_line = {after.partition("=")[0] for word, after in pairs if word == "--set"}
    # `--server` of actors and evaluations.
    by_command_line |= {"act.env_server.address", "eval.env_server.address"}
    in_config = set(leaves(filled_settings(layout, dispatch_address="ipc://x", seed=0)))
    assert by_command_line | in_config == set(INSTEAD) - {"engine.api_key"}


@pytest.mark.parametrize("setting", INSTEAD)
def test_what_is_refused_is_a_setting(setting: str) -> None:
    table, *keys = setting.split(".")
    model: object = MODELS[table]
    for key in keys:
        assert isinstance(model, type)
        assert issubclass(model, Config)
        model = model.model_fields[key].annotation


@pytest.mark.parametrize("setting", ["engine=1", "act.renderer=1"])
def test_a_value_in_the_place_of_a_table_is_refused(setting: str, tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    name, _, value = setting.rpartition(".")
    path.write_text(f"[{name}]\n{value}\n" if name else f"{setting}\n")

    def make() -> Tree:
        return run_document(read_document(path, ()), RunLayout(tmp_path), seed=0)

    with pytest.raises(ConfigError, match="must be a table"):
        make()
