"""An engine that samples nothing: the control calls of SGLang's dialect over real HTTP, with a script of failures."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ScriptedEngine:
    """Serves on loopback between construction and `close`; may be restarted on the same port."""

    def __init__(self, *, api_key: str = "", port: int = 0) -> None:
        self.calls: list[tuple[str, dict[str, object]]] = []
        self.weight_version = "default"
        self.info: dict[str, object] = {"engine": "scripted", "version": "1", "sglang_dialect": "0.5.23"}
        self.fail_loads = 0
        """How many of the next loads answer 400."""
        self.lie = False
        """Whether loads answer 200 without taking the version."""
        self.content: object = None
        """What every answer holds in place of its own; None: its own."""
        self.cut_short = False
        """Whether every answer breaks off after its first byte."""
        self._api_key = api_key
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str, body: dict[str, object]) -> tuple[int, dict[str, object]]:
        if path == "/model_info":
            return 200, {"weight_version": self.weight_version}
        if path == "/server_info":
            return 200, self.info
        if path == "/update_weights_from_disk":
            if self.fail_loads:
                self.fail_loads -= 1
                return 400, {"success": False, "message": "out of memory"}
            if not self.lie:
                self.weight_version = str(body["weight_version"])
        return 200, {"success": True}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or b"{}")
                engine.calls.append((self.path, body))
                status, content = engine.answer(self.path, body)
                if engine._api_key and self.headers.get("Authorization") != f"Bearer {engine._api_key}":
                    status, content = 401, {"message": "a key is needed"}
                data = json.dumps(content if engine.content is None else engine.content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[:1] if engine.cut_short else data)

            do_GET = do_POST = _serve  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        return Handler
