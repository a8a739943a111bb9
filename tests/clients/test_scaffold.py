"""`longturn envs new` writes a package that passes the conformance suite as it is."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from clients.scaffold import write_scaffold
from longturn.errors import ConfigError
from tests.clients.daemons import ROOT


def _install(project: Path, site: Path) -> None:
    """What an editable install leaves behind: the metadata with the entry points, and a path."""
    tree = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    folder = site / f"{tree['name']}-{tree['version']}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {tree['name']}\nVersion: {tree['version']}\n")
    lines = [f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
             for group, points in tree["entry-points"].items()]  # fmt: skip
    (folder / "entry_points.txt").write_text("\n".join(lines))


def _run(arguments: list[str], project: Path, site: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(map(str, (site, project, ROOT)))
    variables = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=500, env=variables)


@pytest.mark.slow
@pytest.mark.timeout(600)  # it starts five servers
def test_a_scaffold_passes_the_suite_and_its_own_tests_untouched(tmp_path: Path) -> None:
    project, site = tmp_path / "project", tmp_path / "site"
    write_scaffold("dark_shore", project)
    _install(project, site)
    checked = _run(["longturn", "envs", "check", "dark_shore", "--only", "tasks_are_listed"], project, site)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.split()[:2] == ["PASS", "tasks_are_listed"]
    tested = _run(["pytest", "-q", "-p", "no:cacheprovider"], project, site)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "13 passed" in tested.stdout


def test_the_command_writes_the_package_and_says_what_comes_next(tmp_path: Path) -> None:
    result = _run(["longturn", "envs", "new", "dark_shore"], tmp_path, tmp_path)
    assert result.returncode == 0, result.stderr
    assert Path(result.stdout.splitlines()[0]) == Path("dark_shore/pyproject.toml")
    assert "longturn envs check dark_shore" in result.stderr
    again = _run(["longturn", "envs", "new", "dark_shore"], tmp_path, tmp_path)
    assert again.returncode == 2
    assert "--folder" in again.stderr


@pytest.mark.parametrize("name", ["", "Shore", "1shore", "dark-shore", "class", "echo", "json", "a" * 41])
def test_a_name_that_cannot_be_one_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        write_scaffold(name, tmp_path / "project")
    assert not (tmp_path / "project").exists()
