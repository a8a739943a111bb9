"""Group commit: what the episodes did in one turn of the loop is written in one go, then their clients are answered.

Invariant: nothing is run and nothing is answered before the record of it is with the operating system. While the state
dir cannot be written, what happened already is kept for the next attempt, and everything new is refused.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from env_server.episode import Episode
from env_server.episode_records import EpisodeRecord, pack_failure, pack_turn
from env_server.refusals import RefusedError
from env_server.state_log import RecordKind, StateLog
from longturn.metrics import Metrics
from longturn.records import EndCause

logger = logging.getLogger(__name__)

RETRY_S = 0.25
"""Time between two attempts to write to a state dir that could not be written."""
SYNC_S = 1.0
MOST_REWRITTEN = 500
"""Episodes written down anew at once: each takes some tens of microseconds of everybody's time."""

ACTION, RESULT = int(RecordKind.ACTION), int(RecordKind.RESULT)


class Durability:
    """The episodes' way into the state log."""

    def __init__(self, log: StateLog, *, metrics: Metrics) -> None:
        self.find: Callable[[int], Episode | None] = lambda key: None
        """An episode by its key; set by the table."""
        self._log, self._metrics = log, metrics
        self._waiting: list[tuple[Callable[[], None], Callable[[RefusedError], None]]] = []
        self._is_scheduled = False
        self._error: OSError | None = None
        """Why the last attempt to write failed; None while all is well."""
        self._retry_at_s = 0.0

    # --- records -------------------------------------------------------------------------------------------------

    def add_action(self, key: int, turn_index: int, action: str) -> None:
        """An action is about to be run."""
        self._append(ACTION, key, pack_turn(turn_index, action.encode()))

    def add_result(self, key: int, turn_index: int, payload: bytes) -> None:
        """What the action of this turn led to."""
        self._append(RESULT, key, pack_turn(turn_index, payload))

    def add_episode(self, episode: Episode) -> None:
        """All of an episode, in place of whatever is known of it."""
        self._append(RecordKind.EPISODE, episode.key, _record(episode).to_bytes())
        if episode.action is not None:
            self.add_action(episode.key, episode.turn_index, episode.action)

    def add_failure(self, episode: Episode, reason: str, message: str) -> None:
        """The episode has failed."""
        self._append(RecordKind.FAILED, episode.key, pack_failure(reason, message))

    def add_cut(self, episode: Episode, cause: EndCause) -> None:
        """The episode was cut."""
        self._append(RecordKind.CUT, episode.key, bytes([cause.value]))

    def add_drop(self, episode: Episode) -> None:
        """The episode is forgotten."""
        self._append(RecordKind.DROPPED, episode.key, b"")

    def _append(self, kind: int, key: int, payload: bytes) -> None:
        self._log.append(kind, key, payload)
        self._schedule()

    # --- commit --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """RefusedError(STATE_DIR_UNWRITABLE) while the state dir cannot be written."""
        if self._error is not None and time.monotonic() >= self._retry_at_s:
            self._flush()
        if self._error is not None:
            raise self._refusal(self._error)

    def when_written(self, proceed: Callable[[], None], refuse: Callable[[RefusedError], None]) -> None:
        """Call one of the two, once all records so far are written or cannot be."""
        self._waiting.append((proceed, refuse))
        self._schedule()

    async def written(self) -> None:
        """Return once all records so far are written; RefusedError(STATE_DIR_UNWRITABLE) if they cannot be."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_written(partial(_resolve, done, None), partial(_resolve, done))
        await done

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._commit)

    def _commit(self) -> None:
        self._is_scheduled = False
        waiting, self._waiting = self._waiting, []
        self._flush()
        error = self._error
        for proceed, refuse in waiting:
            if error is None:
                proceed()
            else:
                refuse(self._refusal(error))

    def _flush(self) -> None:
        try:
            self._log.flush()
        except OSError as error:
            if self._error is None:
                fields = {"state_dir": str(self._log.folder), "reason": str(error)}
                logger.error("the state dir cannot be written: nothing new is taken until it can", extra=fields)
                self._metrics.count("server/state/num_write_failures")
            self._error = error
            self._retry_at_s = time.monotonic() + RETRY_S
        else:
            if self._error is not None:
                logger.warning("the state dir can be written again", extra={"state_dir": str(self._log.folder)})
            self._error = None

    def _refusal(self, error: OSError) -> RefusedError:
        return RefusedError(
            "STATE_DIR_UNWRITABLE",
            f"the server cannot write its state dir {self._log.folder} ({error.strerror or error}): free some space"
            " there or let the server write there, or move env_server.state_dir; nothing that was answered is lost",
            retry_after_s=1.0,
            setting="env_server.state_dir",
        )

    # --- upkeep --------------------------------------------------------------------------------------------------

    async def keep_forever(self) -> None:
        """Sync every second, retry what could not be written, and let old segments go; runs until cancelled."""
        while True:
            await asyncio.sleep(SYNC_S)
            if self._error is not None:
                self._flush()
            self._free_oldest_segment()
            try:
                await self._log.sync()
            except OSError as error:
                logger.error("the state dir cannot be synced", extra={"reason": str(error)})

    def _free_oldest_segment(self) -> None:
        if self._error is not None:
            return
        for key in self._log.pinning(MOST_REWRITTEN):
            episode = self.find(key)
            if episode is not None:
                self.add_episode(episode)


def _record(episode: Episode) -> EpisodeRecord:
    journal, last = episode.journal, episode.last.SerializeToString()
    is_cut = episode.reply is not episode.last
    return EpisodeRecord(
        episode_id=episode.episode_id,
        token_digest=episode.token_digest,
        request=episode.request,
        environment_version=episode.spec.version,
        data_hash=episode.spec.data_hash,
        max_turns=episode.max_turns,
        born_at_s=time.time() - (time.monotonic() - episode.born_at_s),
        initial=episode.initial,
        initial_hash=journal.initial_hash,
        turns=journal.packed(),
        turn_index=episode.turn_index,
        episode_return=episode.episode_return,
        last=last,
        reply=episode.reply.SerializeToString() if is_cut else last,
        answered_index=episode.answered_index,
        answered_action=episode.answered_action,
        payloads=tuple(journal.payloads()) if journal.keeps_payloads else None,
    )


def _resolve(done: asyncio.Future[None], refusal: RefusedError | None) -> None:
    if done.done():  # whoever waited has stopped
        return
    if refusal is None:
        done.set_result(None)
    else:
        done.set_exception(refusal)
