"""`longturn doctor` names a command for everything that is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from longturn.doctor import doctor


def test_this_machine_can_train(capsys: pytest.CaptureFixture[str]) -> None:
    doctor()
    text = capsys.readouterr().out
    assert "ok    python: 3.1" in text
    assert "ok    extra learner: installed" in text


def test_a_missing_extra_is_named_with_the_command_that_installs_it() -> None:
    source = (
        "import importlib.util, typer\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: None if name == 'matplotlib' else find(name)\n"
        "from longturn.doctor import doctor\n"
        "app = typer.Typer(); app.command()(doctor); app()\n"
    )
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert result.returncode == 1
    assert "FAIL  extra report: missing matplotlib" in result.stdout
    assert "in the checkout run: make install" in result.stdout
    assert "'.[report]'" in result.stdout
