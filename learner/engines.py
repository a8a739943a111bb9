"""Engines in rotation: which hold the newest weights, kept so by one thread per engine.

Invariant: an engine is in rotation iff its last answer confirmed the newest target version. It leaves rotation the
moment an update starts or a check fails, and comes back only after a full load that it confirmed: a half-applied update
never serves. What ends a keeper other than a fault of its engine is raised by `publish`.
"""

from __future__ import annotations

import http.client
import json
import logging
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longturn.errors import LongturnError

logger = logging.getLogger(__name__)
_CLOSE_TIMEOUT_S = 5.0


class EngineError(LongturnError):
    """An engine did not do what it was asked; the message is its own."""

    reason = "ENGINE_ERROR"


class EngineLostError(EngineError):
    """An engine cannot be reached, or broke off in the middle of an answer."""

    reason = "ENGINE_LOST"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The weights that all engines shall hold."""

    policy_version: int
    training_step: int
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRules:
    """How an engine is brought to new weights."""

    pause_mode: str
    flush_cache: bool
    timeout_s: float


class EngineClient:
    """The control calls of one engine, in SGLang's dialect."""

    def __init__(self, url: str, api_key: str = "") -> None:
        self.url = url.rstrip("/")
        self.api_key = api_key

    def weight_version(self, *, timeout_s: float) -> str:
        """What the engine says it holds; EngineError if it does not answer."""
        return str(self._call("/model_info", None, timeout_s).get("weight_version"))

    def load(self, target: Target, rules: UpdateRules) -> None:
        """Pause, load, continue; EngineError unless the engine then confirms the version. Always continues."""
        self._call("/pause_generation", {"mode": rules.pause_mode}, rules.timeout_s)
        try:
            body = {
                "model_path": str(target.folder),
                "weight_version": str(target.policy_version),
                "flush_cache": rules.flush_cache,
            }
            answer = self._call("/update_weights_from_disk", body, rules.timeout_s)
        finally:
            # An engine that was paused and failed to load must not hold its requests for ever; what it answers now
            # carries its old version, and it is out of rotation.
            self._call("/continue_generation", {}, rules.timeout_s)
        if answer.get("success") is False:
            raise EngineError(f"{self.url} refused the weights: {answer.get('message')}")
        found = self.weight_version(timeout_s=rules.timeout_s)
        if found != str(target.policy_version):
            raise EngineError(f"{self.url} reports version {found} after loading {target.policy_version}")

    def _call(self, path: str, body: Mapping[str, object] | None, timeout_s: float) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.url}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"}
            | ({"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}),
        )
        try:
            status, data = _exchange(request, timeout_s)
            content = json.loads(data or b"{}") if status < 400 else {}
        except (OSError, http.client.HTTPException) as error:
            raise EngineLostError(f"{self.url}{path}: {error!r}") from error
        except ValueError as error:
            raise EngineError(f"{self.url}{path}: {error}") from error
        if status >= 400:
            raise EngineError(f"{self.url}{path}: {status} {data[:500].decode(errors='replace')}")
        if not isinstance(content, dict):
            raise EngineError(f"{self.url}{path}: reply is no JSON object")
        return content


def _exchange(request: urllib.request.Request, timeout_s: float) -> tuple[int, bytes]:
    """Status and body, whatever the status is."""
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


class EngineRegistry:
    """Keeps engines at the newest weights and says which are in rotation."""

    def __init__(
        self,
        clients: list[EngineClient],
        rules: UpdateRules,
        *,
        check_interval_s: float,
        on_change: Callable[[Target, list[EngineClient]], None],
        on_lost: Callable[[EngineClient], None],
    ) -> None:
        """Both are called from a keeper's thread: `on_change` when rotation changes outside `publish`, `on_lost` every
        time an engine turns out to be lost, at the latest version or on the way to it.
        """
        self._rules = rules
        self._check_interval_s = check_interval_s
        self._on_change = on_change
        self._on_lost = on_lost
        self._clients = clients
        self._changed = threading.Condition()
        self._target: Target | None = None
        self._confirmed: dict[str, int] = {}
        self._failures: dict[str, str] = {}
        self._crash: BaseException | None = None
        self._is_publishing = False
        self._closing = False
        self._threads = [
            threading.Thread(target=self._keep, args=(client,), name=f"engine-{index}", daemon=True)
            for index, client in enumerate(clients)
        ]
        for thread in self._threads:
            thread.start()

    def publish(self, target: Target, *, timeout_s: float) -> list[EngineClient]:
        """Have all engines load a version; those that confirmed it, at the latest after `timeout_s`.

        Returns as soon as every engine confirmed or failed, and at least one confirmed. Calling it again with the same
        target waits on. Raises what ended a keeper, such as a ledger that cannot take an announcement.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            if self._target is not target:
                # Only news wakes the keepers: one that waits to try a failed engine again keeps its pace.
                self._target = target
                self._failures.clear()
                self._changed.notify_all()
            self._is_publishing = True
            try:
                while not (self._is_settled() or self._closing or self._crash):
                    remaining_s = deadline_s - time.monotonic()
                    if remaining_s <= 0:
                        break
                    self._changed.wait(remaining_s)
                if self._crash is not None:
                    raise self._crash
                return self._in_rotation()
            finally:
                self._is_publishing = False

    @property
    def failures(self) -> dict[str, str]:
        """Last error of each engine that is not in rotation, by address."""
        with self._changed:
            return dict(self._failures)

    def close(self) -> None:
        """Stop keeping."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            # A thread inside a call that hangs ends with the process.
            thread.join(_CLOSE_TIMEOUT_S)

    def _is_settled(self) -> bool:
        return bool(self._in_rotation()) and all(
            client in self._in_rotation() or client.url in self._failures for client in self._clients
        )

    def _in_rotation(self) -> list[EngineClient]:
        version = self._target.policy_version if self._target else -1
        return [client for client in self._clients if self._confirmed.get(client.url) == version]

    def _keep(self, client: EngineClient) -> None:
        try:
            self._keep_until_closed(client)
        except BaseException as error:  # noqa: BLE001  # handed to the training thread, which raises it
            with self._changed:
                self._confirmed.pop(client.url, None)
                self._crash = self._crash or error
                self._changed.notify_all()

    def _keep_until_closed(self, client: EngineClient) -> None:
        while True:
            with self._changed:
                target = self._target
                is_current = target is not None and self._confirmed.get(client.url) == target.policy_version
            if target is not None and not is_current:
                self._load(client, target)
            elif target is not None:
                self._check(client, target)
            with self._changed:
                # What other keepers note is no news to this one: two engines that fail would drive each other.
                self._changed.wait_for(self._is_news_for(target), self._check_interval_s)
                if self._closing:
                    return

    def _is_news_for(self, target: Target | None) -> Callable[[], bool]:
        return lambda: self._closing or self._target is not target

    def _load(self, client: EngineClient, target: Target) -> None:
        try:
            client.load(target, self._rules)
        except EngineError as error:
            self._note(client, target, error=error)
        else:
            self._note(client, target, error=None)

    def _check(self, client: EngineClient, target: Target) -> None:
        try:
            found = client.weight_version(timeout_s=min(10.0, self._rules.timeout_s))
        except EngineError as error:
            self._note(client, target, error=error)
            return
        if found != str(target.policy_version):
            text = f"{client.url} holds version {found}; it restarted or was changed by hand"
            self._note(client, target, error=EngineError(text))

    def _note(self, client: EngineClient, target: Target, *, error: EngineError | None) -> None:
        with self._changed:
            before = client in self._in_rotation()
            if error is None:
                self._confirmed[client.url] = target.policy_version
                self._failures.pop(client.url, None)
            else:
                self._confirmed.pop(client.url, None)
                if self._failures.get(client.url) != str(error):
                    logger.warning("engine out of rotation", extra={"url": client.url, "error": str(error)})
                self._failures[client.url] = str(error)
            rotation = self._in_rotation()
            is_news = (client in rotation) != before and not self._is_publishing and self._target is target
            self._changed.notify_all()
        if is_news:
            self._on_change(target, rotation)
        elif isinstance(error, EngineLostError):
            self._on_lost(client)
