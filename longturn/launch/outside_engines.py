"""Engines that already run, such as SGLang servers: the launcher starts none, and only has them load weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any  # JSON

from longturn.engine_http import NO_ANSWER, exchange
from longturn.errors import LongturnError, UnreachableError
from longturn.json_text import parse_json

_CALL_TIMEOUT_S = 120.0
_SAY_AFTER_S = 2.0


class OutsideEngineError(LongturnError):
    """An engine that was not started here does not do what the run needs."""

    reason = "OUTSIDE_ENGINE"


class OutsideEngines:
    """The engines of `run.engine_urls`."""

    def __init__(
        self, urls: Sequence[str], api_key: str, *, wait_s: float, tick: Callable[[], None], say: Callable[[str], None]
    ) -> None:
        """`tick` lets time pass; engines that do not answer are waited for `wait_s`, which `say` tells the user."""
        self.urls = tuple(url.rstrip("/") for url in urls)
        self._api_key = api_key
        self._wait_s = wait_s
        self._tick = tick
        self._say = say

    def load(self, model: Path, version: str) -> None:
        """Have all engines serve `model` as `version`; OutsideEngineError with an engine's own words if it refuses."""
        for url in self.urls:
            self._await(url, model)
            answer = self._call(url, "/update_weights_from_disk", {"model_path": str(model), "weight_version": version})
            if answer.get("success") is False:
                raise OutsideEngineError(f"{url} did not load {model}: {answer.get('message')}")
            # A learner that was killed in the middle of an update left it paused.
            self._call(url, "/continue_generation", {})
        self.confirm(version)

    def confirm(self, version: str) -> None:
        """OutsideEngineError unless all engines hold the version: one that was started anew holds another."""
        for url in self.urls:
            found = self._call(url, "/model_info", None).get("weight_version")
            if found != version:
                raise OutsideEngineError(
                    f"{url} holds weights {found!r}, not {version!r}: it was started again meanwhile"
                )

    def _await(self, url: str, model: Path) -> None:
        started_s, has_said = time.monotonic(), False
        while True:
            try:
                self._call(url, "/model_info", None)
            except UnreachableError:
                waited_s = time.monotonic() - started_s
                if waited_s > self._wait_s:
                    raise
                if waited_s > _SAY_AFTER_S and not has_said:
                    has_said = True
                    self._say(f"waiting for {url}; start an engine there, for example: {_command(url, model)}")
                self._tick()
            else:
                return

    def _call(self, url: str, path: str, body: Mapping[str, object] | None) -> dict[str, Any]:
        try:
            answer = exchange(url, path, body, api_key=self._api_key, timeout_s=_CALL_TIMEOUT_S)
        except NO_ANSWER as error:
            raise UnreachableError(
                f"the engine at {url} (run.engine_urls) does not answer: {error}; it is not started by the launcher"
            ) from error
        if answer.is_refusal:
            raise OutsideEngineError(
                f"{url}{path} answered {answer.status}: {answer.words}; its key is read from run.engine_api_key_file"
            )
        try:
            return dict(parse_json(answer.body or b"{}"))
        except (ValueError, TypeError) as error:
            raise OutsideEngineError(f"{url}{path} is no engine's answer: {error}; check run.engine_urls") from error


def _command(url: str, model: Path) -> str:
    port = url.rpartition(":")[2]
    return f"python -m sglang.launch_server --model-path {model} --port {port}"
