"""Publishes weights: a sealed folder per version, which every engine reads or is sent."""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from learner.checkpoint_files import sealed_folder
from learner.engine_client import EngineClient, Target
from learner.engines import EngineRegistry
from longturn.completion import is_marked
from longturn.errors import UnreachableError
from longturn.status import StatusBoard

logger = logging.getLogger(__name__)
_NAME = re.compile(r"v(\d+)")
_LOG_EVERY_S = 10.0
_SLICE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A version that was offered to the engines; `confirmed` is empty if none took it in time."""

    target: Target
    confirmed: tuple[EngineClient, ...]
    is_announced: bool
    save_s: float
    load_s: float


class Publisher:
    """Writes `weights/v000010/` and has the engines load it."""

    def __init__(
        self,
        folder: Path,
        registry: EngineRegistry,
        *,
        save_model: Callable[[Path], None],
        require_engine: bool,
        keep: int,
        salts_cache: bool = False,
        board: StatusBoard,
        check_stop: Callable[[], None],
    ) -> None:
        self._folder = folder.resolve()
        self._registry = registry
        self._save_model = save_model
        self._require_engine = require_engine
        self._keep = keep
        self._salts_cache = salts_cache
        self._board = board
        self._check_stop = check_stop

    def publish(self, policy_version: int, training_step: int, *, timeout_s: float) -> Published:
        """Save the current weights as a version and wait until engines confirmed it, at most `timeout_s`."""
        started_s = time.monotonic()
        with sealed_folder(self._folder, f"v{policy_version:06d}", facts={"policy_version": policy_version}) as partial:
            self._save_model(partial)
        target = Target(
            policy_version=policy_version,
            training_step=training_step,
            folder=self._folder / f"v{policy_version:06d}",
            cache_salt=f"v{policy_version}" if self._salts_cache else "",
        )
        saved_s = time.monotonic()
        confirmed = self._offer(target, timeout_s)
        self._prune(policy_version)
        return Published(
            target=target,
            confirmed=confirmed,
            is_announced=bool(confirmed) or not self._require_engine,
            save_s=saved_s - started_s,
            load_s=time.monotonic() - saved_s,
        )

    def _offer(self, target: Target, timeout_s: float) -> tuple[EngineClient, ...]:
        if not self._require_engine:
            return tuple(self._registry.publish(target, timeout_s=0.0))
        deadline_s = time.monotonic() + timeout_s
        logged_s = time.monotonic()
        reason = f"policy version {target.policy_version} to be loaded"
        with self._board.waiting("engine", reason, budget_s=timeout_s):
            while True:
                self._check_stop()
                remaining_s = deadline_s - time.monotonic()
                confirmed = self._registry.publish(target, timeout_s=min(_SLICE_S, max(0.0, remaining_s)))
                if confirmed or remaining_s <= 0:
                    return tuple(confirmed)
                if time.monotonic() - logged_s < _LOG_EVERY_S:
                    continue
                logged_s = time.monotonic()
                logger.info(
                    "waiting for an engine",
                    extra={"policy_version": target.policy_version, "remaining_s": round(remaining_s), **self.problem},
                )

    @property
    def problem(self) -> dict[str, str]:
        """What engines out of rotation said last."""
        return {"failures": "; ".join(self._registry.failures.values())}

    def first_engine_missing(self, timeout_s: float) -> UnreachableError:
        """The error of a start at which no engine came up."""
        failures = self.problem["failures"]
        return UnreachableError(
            f"no engine loaded the first weights within {timeout_s:g} s ({failures}); start one with `longturn engine "
            f"--set model_path=MODEL --set weights_root={self._folder}`, or set learner.publish.engines and "
            "learner.publish.connect_timeout_s"
        )

    def _prune(self, newest: int) -> None:
        """Remove old folders; whatever is unsealed was left by a kill."""
        for path in self._folder.iterdir():
            match = _NAME.fullmatch(path.name)
            is_old = match is not None and int(match.group(1)) <= newest - self._keep
            if is_old or (path.is_dir() and not is_marked(path)):
                shutil.rmtree(path)
