"""The containers: their settings are the quickstart's, and files and folders are where compose.yaml says."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from longturn.cli import build_app

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = tomllib.loads((ROOT / "configs" / "quickstart.toml").read_text(encoding="utf-8"))
COMPOSE = tomllib.loads((ROOT / "configs" / "compose.toml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PATHS_AND_ADDRESSES = {
    "env_server.port",
    "engine.model_path",
    "engine.weights_root",
    "engine.api_key_file",
    "engine.port",
    "act.run_dir",
    "act.env_server.address",
    "act.dispatch.address",
    "act.renderer.tokenizer",
    "learner.run_dir",
    "learner.model.path",
    "learner.tasks.path",
    "learner.evaluation.path",
    "learner.dispatch.address",
    "learner.publish.engines",
}


def settings(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Values by dotted name."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from settings(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def test_the_containers_train_with_the_settings_of_the_quickstart() -> None:
    daemons = {table: QUICKSTART[table] for table in ("env_server", "engine", "act", "learner")}
    assert dict(settings(daemons)).items() <= dict(settings(COMPOSE)).items()
    assert dict(settings(COMPOSE)).keys() - dict(settings(daemons)).keys() == PATHS_AND_ADDRESSES
    assert QUICKSTART["run"]["seed"] == 0, "the learner's default seed"


def test_the_containers_find_each_other_and_the_warm_start() -> None:
    act, learner, engine = COMPOSE["act"], COMPOSE["learner"], COMPOSE["engine"]
    assert act["env_server"]["address"] == f"127.0.0.1:{COMPOSE['env_server']['port']}"
    assert act["dispatch"] == learner["dispatch"]
    assert learner["publish"]["engines"] == [
        {"url": f"http://127.0.0.1:{engine['port']}", "api_key_file": engine["api_key_file"]}
    ]
    assert engine["weights_root"] == f"{learner['run_dir']}/weights"
    assert engine["model_path"] == learner["model"]["path"] == act["renderer"]["tokenizer"]
    folder = f"runs/{QUICKSTART['run']['name']}/"
    paths = [engine["model_path"], engine["api_key_file"], learner["tasks"]["path"], learner["evaluation"]["path"]]
    assert all(path.startswith(folder) for path in paths)


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_a_container_has_a_stage_of_the_dockerfile_and_settings_that_its_daemon_takes(service: str) -> None:
    options = SERVICES[service]
    stage = re.search(rf"^FROM base AS {options['build']['target']}\n(.*?)(?=^FROM|\Z)", DOCKERFILE, re.S | re.M)
    assert stage is not None
    folder = re.findall(r"^WORKDIR (.+)$", stage[1], re.M)[-1]
    mounts = dict(volume.split(":")[:2] for volume in options["volumes"])
    assert mounts == {"../runs": f"{folder}/runs", "../configs": f"{folder}/configs"}
    assert f"VOLUME {folder}/runs" in DOCKERFILE
    entry_point = re.search(r'^ENTRYPOINT \["longturn", "(\w+)"\]$', stage[1], re.M)
    assert entry_point is not None
    command = [entry_point[1], *options["command"], "--dry-run"]
    result = CliRunner().invoke(build_app(), command)
    assert result.exit_code == 0, result.output
    assert all(not value.startswith("/") for value in options["command"])


def test_every_daemon_of_the_quickstart_has_a_container() -> None:
    assert {options["build"]["target"] for options in SERVICES.values()} == set(SERVICES)
    assert set(SERVICES) == {"env_server", "engine", "actors", "learner"}
