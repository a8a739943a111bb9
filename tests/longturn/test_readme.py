"""What the README tells a reader to type for playing over the wire works."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from longturn.launch.child import Child, stop_all
from tests.longturn.launch.test_child import files_in
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


def buf_curl(url: str, body: dict[str, object]) -> dict[str, object]:
    command = [str(Path(sys.executable).with_name("buf")), "curl", "--protocol", "grpc", "--http2-prior-knowledge"]
    if not Path(command[0]).exists():
        pytest.skip("buf is not installed; run: make install")
    result = subprocess.run([*command, "-d", json.dumps(body), url], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[str]:
    """URL of the environment service of a real server, as `longturn serve` starts it."""
    files = files_in(tmp_path, "env_server")
    command = [sys.executable, "-m", "longturn", "serve", "--env", "echo", "--port", "0", "--workers", "1"]
    child = Child("env_server", [*command, "--ready-file", str(files.ready)], files)
    try:
        wait_until(lambda: child.ready() is not None or child.exit_code() is not None)
        facts = child.ready()
        assert facts is not None, child.last_words()
        yield f"http://{facts['address']}/longturn.v1.EnvironmentService"
    finally:
        stop_all([child], grace_s=10.0)


def test_buf_curl_lists_and_plays(service: str) -> None:
    assert "echo" in json.dumps(buf_curl(f"{service}/ListEnvironments", {}))
    listed = buf_curl(f"{service}/ListTasks", {"environment": "echo", "split": "train", "page_size": 1})
    task = json.loads(json.dumps(listed))["tasks"][0]["task"]
    started = buf_curl(f"{service}/StartEpisode", {"request_id": str(uuid.uuid4()), "task": task})
    step = {"episode_id": started["episodeId"], "episode_token": started["episodeToken"], "action": "amber"}
    assert json.loads(json.dumps(buf_curl(f"{service}/Step", step)))["result"]["turnIndex"] == 1
