"""The commands of the README's section "Four terminals", typed as they stand, train a run."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from longturn.launch.child import Child, stop_all
from tests.longturn.launch.test_child import files_in
from tests.longturn.launch.test_train import ECHO, assert_history_is_whole
from tests.support.waiting import wait_until

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    """The section's commands, on ports that are free and with the echo environment in place of the quickstart's."""
    section = README.partition("## Four terminals")[2].partition("\n## ")[0]
    text = "\n".join(re.findall(r"^    (.*)$", section, re.M)).replace("\\\n", "")
    text = text.replace("configs/quickstart.toml", str(ECHO))
    with ExitStack() as stack:
        for port in ("50051", "30000"):
            assert port in text
            probe = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            text = text.replace(port, str(probe.getsockname()[1]))
    return [shlex.split(line) for line in text.splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_of_the_readme_train_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    warmstart, *daemons = commands()
    assert [words[:2] for words in daemons] == [["longturn", name] for name in ("serve", "engine", "learn", "act")]
    subprocess.run([sys.executable, "-m", *warmstart], check=True)
    children = [Child(words[1], [sys.executable, "-m", *words], files_in(tmp_path, words[1])) for words in daemons]
    try:
        ending = [child for child in children if child.name in ("learn", "act")]
        wait_until(lambda: all(child.exit_code() is not None for child in ending), limit_s=300.0)
        assert {child.name: child.exit_code() for child in ending} == {"learn": 0, "act": 0}, ending[0].last_words()
    finally:
        stop_all(children, grace_s=10.0)
    assert_history_is_whole(tmp_path / "runs" / "four")
