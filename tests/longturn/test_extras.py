"""A missing module is answered with the extra that brings it."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from longturn.extras import MODULES_BY_EXTRA

ROOT = Path(__file__).resolve().parents[2]
LOADED_BY_TORCH = {"numpy", "tensorboard"}
"""By torch.utils.tensorboard and safetensors.torch."""
OF_OTHER_EXTRAS = {"gymnasium_env.py", "mcp_view.py", "mcp_command.py", "lora.py"}
"""Files of a plane that belong to an extra of their own."""
NOT_FOR_RUNS = {"all", "dev", "sglang"}


def test_the_table_holds_what_pyproject_installs() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(MODULES_BY_EXTRA) == set(declared) - NOT_FOR_RUNS
    for extra, modules in MODULES_BY_EXTRA.items():
        names = {requirement.partition(">=")[0].partition("==")[0] for requirement in declared[extra]}
        assert {_module_of(name) for name in names} <= set(modules)


def _module_of(package: str) -> str:
    """The module that a package brings."""
    name = package.replace("-", "_")
    if name.startswith("opentelemetry_"):
        return "opentelemetry"
    return {"grpcio_channelz": "grpc_channelz"}.get(name, name)


def imported_by(package: str) -> set[str]:
    """Top-level modules that a package's files import, anywhere in them."""
    found: set[str] = set()
    for path in (ROOT / package).rglob("*.py"):
        if path.name in OF_OTHER_EXTRAS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize(
    ("package", "extra"), [("clients", "clients"), ("local_engine", "engine"), ("learner", "learner")]
)
def test_an_extra_names_what_its_plane_imports_and_nothing_else(package: str, extra: str) -> None:
    declared, imported = set(MODULES_BY_EXTRA[extra]), imported_by(package)
    of_extras = {module for modules in MODULES_BY_EXTRA.values() for module in modules}
    assert imported & of_extras <= declared
    assert declared - imported <= LOADED_BY_TORCH


@pytest.mark.parametrize(
    ("command", "module", "extra"),
    [("engine", "torch", "engine"), ("learn", "torch", "learner"), ("act", "aiohttp", "clients")],
)
def test_a_command_names_the_extra_of_its_own_plane(command: str, module: str, extra: str, tmp_path: Path) -> None:
    source = f"import sys; sys.modules[{module!r}] = None; from longturn.cli import main; main()"
    settings = {
        "engine": ["--set", f"model_path={tmp_path}"],
        "learn": ["--set", f"run_dir={tmp_path}"],
        "act": ["--set", f"run_dir={tmp_path}"],
    }
    line = [sys.executable, "-c", source, command, *settings[command]]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"longturn: {module} is not installed; in the checkout run: make")
    assert f"'.[{extra}]'" in done.stderr
