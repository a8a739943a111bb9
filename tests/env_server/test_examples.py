"""The examples do what they say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.env_server.processes import daemon

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NODE = EXAMPLES / "node"


def test_the_textworld_example_wins_a_real_game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("textworld")
    monkeypatch.setenv("LONGTURN_CACHE", str(tmp_path / "cache"))
    with daemon(tmp_path, "--env", "textworld") as (_, address):
        command = [sys.executable, str(EXAMPLES / "play_textworld.py"), address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True, env=os.environ)
        assert done.stdout.splitlines()[-1].startswith("won after")


class _ChatHandler(BaseHTTPRequestHandler):
    """Says the word that the newest observation of the echo environment asks for, after a line of reasoning."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:  # the name that the standard library asks for
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        assert isinstance(server, _ChatServer)
        server.requests.append((self.path, self.headers["Authorization"], body))
        word = body["messages"][-1]["content"].partition("Say ")[2].partition(".")[0]
        message = {"role": "assistant", "content": f"It asks for a word.\n{word}"}
        reply = json.dumps({"object": "chat.completion", "choices": [{"index": 0, "message": message}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""


class _ChatServer(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _ChatHandler)
        self.requests: list[tuple[str, str, dict[str, object]]] = []


@contextmanager
def chat_server() -> Iterator[_ChatServer]:
    """An OpenAI-compatible server on loopback."""
    server = _ChatServer()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_chat_example_wins_with_a_model_behind_an_openai_api(tmp_path: Path) -> None:
    with daemon(tmp_path, "--env", "echo") as (_, address), chat_server() as server:
        command = [sys.executable, str(EXAMPLES / "play_by_chat.py"), address, "echo", "scripted"]
        variables = {"OPENAI_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1", "OPENAI_API_KEY": "a-key"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ | variables)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "won after 50 turns: TERMINATED"
        path, authorization, body = server.requests[-1]
        assert (path, authorization, body["model"]) == ("/v1/chat/completions", "Bearer a-key", "scripted")
        roles = [message["role"] for message in body["messages"]]  # type: ignore[attr-defined,index]
        assert (roles[0], len(roles)) == ("system", 41)


@pytest.mark.node
@pytest.mark.timeout(600)  # the compiler of TypeScript is slow where others share the processor
def test_the_node_example_wins_with_types_generated_from_the_proto(tmp_path: Path) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    if not (NODE / "node_modules").is_dir():
        pytest.skip("the packages of examples/node are not installed; run: npm ci --prefix examples/node")
    built = subprocess.run(["npm", "run", "build", "--prefix", str(NODE)], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    with daemon(tmp_path, "--env", "echo") as (_, address):
        command = ["node", str(NODE / "build" / "play.js"), address]
        done = subprocess.run([*command, "echo"], capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "won after 50 turns"
        wrong = subprocess.run([*command, "ecko"], capture_output=True, text=True, timeout=100)
        assert (wrong.returncode, "echo" in wrong.stderr) == (1, True)
