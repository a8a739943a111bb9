"""Who may import whom, and that nothing heavy is loaded where it is not needed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TORCH_FREE = ("longturn", "env_server", "clients")
OF_EXTRAS = {"clients.gymnasium_env": "gymnasium", "clients.mcp_view": "mcp", "longturn.launch.tied": None}
"""Modules that only import where the extra's package is installed; None: never in a test."""
GAME_LIBRARIES = ("textworld", "jericho", "alfworld", "scienceworld")


def _python(source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", source, *arguments], cwd=ROOT, capture_output=True, text=True)


def _is_importable(module: str) -> bool:
    needed = OF_EXTRAS.get(module, "sys")
    return needed is not None and importlib.util.find_spec(needed) is not None


def _modules_of(package: str) -> list[str]:
    names: list[str] = []
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] != "__main__":
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def test_the_layering_contracts_hold() -> None:
    source = "from importlinter.cli import lint_imports_command as c; c()"
    result = _python(source)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("package", [*TORCH_FREE, "local_engine", "learner"])
def test_no_process_is_forked_where_grpc_may_run(package: str) -> None:
    """A fork after gRPC has started may hang its child. The sandbox forks in a bare interpreter of its own."""
    forking = re.compile(
        r"os\.fork|preexec_fn|get_context\([\"']fork|set_start_method\([\"']fork|multiprocessing\.Process"
    )
    exempt = ROOT / "env_server" / "sandbox"
    paths = [path for path in (ROOT / package).rglob("*.py") if exempt not in path.parents]
    assert not [path for path in paths if forking.search(path.read_text(encoding="utf-8"))]
    assert "import grpc" not in (exempt / "launcher.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("package", TORCH_FREE)
def test_every_module_of_a_torch_free_package_imports_without_torch(package: str) -> None:
    source = (
        "import importlib, sys\n"
        "for name in ('torch', 'transformers'): sys.modules[name] = None\n"  # importing them raises ImportError
        "from longturn.extras import MODULES_BY_EXTRA, OPTIONAL_EXTRAS\n"
        "optional = {module for extra in OPTIONAL_EXTRAS for module in MODULES_BY_EXTRA[extra]}\n"
        "for name in sys.argv[1:]:\n"
        "    try: importlib.import_module(name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        if (error.name or '').partition('.')[0] not in optional: raise\n"
    )
    modules = [name for name in _modules_of(package) if _is_importable(name)]
    result = _python(source, *modules)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("package", ["longturn", "clients", "local_engine", "learner"])
def test_only_the_env_server_names_game_libraries(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for library in GAME_LIBRARIES:
            assert f"import {library}" not in text, path
            assert f"from {library}" not in text, path


def test_the_env_server_loads_game_libraries_in_its_workers_only() -> None:
    source = (
        "import importlib, sys\n"
        f"for name in {GAME_LIBRARIES!r}: sys.modules[name] = None\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
    )
    modules = [name for name in _modules_of("env_server") if not name.startswith("env_server.environments.")]
    result = _python(source, *modules)
    assert result.returncode == 0, result.stderr


COMMANDS = sorted(point.name for point in entry_points(group="longturn.commands"))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_answered_without_loading_anything_heavy(command: str) -> None:
    source = (
        "import sys\n"
        "heavy = ('torch', 'transformers', 'matplotlib', 'textworld', 'numpy', 'aiohttp', 'gymnasium', 'mcp')\n"
        "for name in heavy: sys.modules[name] = None\n"
        "from longturn.cli import build_app\n"
        "build_app()([sys.argv[1], '--help'])\n"
    )
    result = _python(source, command)
    assert result.returncode == 0, result.stderr
    assert "--help" in result.stdout
