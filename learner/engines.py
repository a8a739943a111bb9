"""Engines in rotation: which hold the newest weights, kept so by one thread per engine.

Invariant: an engine is in rotation iff its last answer confirmed the newest target version. It leaves rotation the
moment an update starts or a check fails, and comes back only after a full load that it confirmed: a half-applied update
never serves. What ends a keeper other than a fault of its engine is raised by `publish`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from learner.engine_client import EngineClient, EngineError, EngineLostError, Target, UpdateRules

logger = logging.getLogger(__name__)
_CLOSE_TIMEOUT_S = 5.0


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
