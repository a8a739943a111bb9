"""Brings back the episodes of an earlier server from the state log.

Invariant: what was answered is as it was; what cannot go on as it was is lost with a reason, never silently different.
Nothing is replayed here: an episode is replayed, and compared, when its next step comes.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from env_server.environment import Determinism, EnvironmentSpec
from env_server.episode import Episode
from env_server.episode_records import EpisodeRecord, unpack_failure, unpack_turn
from env_server.episode_table import EpisodeTable
from env_server.journal import Journal
from env_server.state_log import Record, RecordKind, StateLog
from longturn.metrics import Metrics
from longturn.records import EndCause
from longturn.v1 import environment_pb2

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Revived:
    episode: Episode
    record: EpisodeRecord
    damage: str = ""


class Restorer:
    """Reads a log into a table; use it once, before the table serves anybody."""

    def __init__(self, table: EpisodeTable, specs: Mapping[str, EnvironmentSpec]) -> None:
        self._table, self._specs = table, specs
        self._revived: dict[int, _Revived] = {}
        self._actions: dict[int, str] = {}
        """Actions that were in flight when the earlier server ended, and those that are read right now."""
        self._last_key = 0

    def restore(self, log: StateLog, *, metrics: Metrics) -> int:
        """Fill the table; returns the largest key that the log has used."""
        for record in log.read():
            self._last_key = max(self._last_key, record.key)
            self._take(record)
        lost: Counter[str] = Counter()
        for revived in self._revived.values():
            self._adopt(revived)
            if not revived.episode.is_final and (why := self._why_lost(revived)):
                lost[why] += 1
                self._table.fail(revived.episode, "EPISODE_LOST", why)
        metrics.count("server/episode/num_restored", len(self._revived) - lost.total())
        if self._revived:
            fields = {"num_episodes": len(self._revived), "num_lost": lost.total(), "reasons": dict(lost)}
            logger.info("episodes of an earlier server restored", extra=fields)
        return self._last_key

    def _adopt(self, revived: _Revived) -> None:
        episode = revived.episode
        self._table.admission.restore(episode.request.client_id)
        self._table.adopt(episode)

    def _take(self, record: Record) -> None:
        kind, key, payload = record
        if kind == RecordKind.EPISODE:
            self._revived[key] = self._revive(key, EpisodeRecord.from_bytes(payload))
            return
        revived = self._revived.get(key)
        if revived is None:  # its beginning is gone, because it was dropped or written down anew later on
            return
        episode = revived.episode
        match kind:
            case RecordKind.ACTION:
                self._actions[key] = unpack_turn(payload)[1].decode()
            case RecordKind.RESULT:
                self._apply(revived, *unpack_turn(payload))
            case RecordKind.FAILED:
                episode.action = self._actions.pop(key, None)
                episode.fail(*unpack_failure(payload))
                episode.action = None
            case RecordKind.CUT:
                episode.cut(EndCause(payload[0]))
            case RecordKind.DROPPED:
                del self._revived[key]
                self._actions.pop(key, None)
            case _:
                revived.damage = f"the state dir holds a record of the unknown kind {kind}"

    def _apply(self, revived: _Revived, turn_index: int, payload: bytes) -> None:
        episode = revived.episode
        action = self._actions.pop(episode.key, None)
        if action is None or turn_index != episode.turn_index:
            revived.damage = f"its journal in the state dir is damaged at turn {episode.turn_index}"
            return
        result = environment_pb2.StepResult.FromString(payload)
        episode.action = action
        episode.journal.append_turn(action, result.state_hash, payload)
        episode.apply(result, len(payload))
        episode.action = None

    def _revive(self, key: int, record: EpisodeRecord) -> _Revived:
        journal = Journal(
            key,
            record.request,
            initial_hash=record.initial_hash,
            turns=record.turns,
            num_turns=record.turn_index,
            payloads=record.payloads,
        )
        episode = self._table.new_episode(
            key=key,
            episode_id=record.episode_id,
            token_digest=record.token_digest,
            request=record.request,
            spec=self._specs.get(record.request.task.environment) or _unserved(record),
            journal=journal,
        )
        episode.max_turns = record.max_turns
        episode.born_at_s -= max(0.0, time.time() - record.born_at_s)
        last = environment_pb2.StepResult.FromString(record.last)
        episode.resume(
            turn_index=record.turn_index,
            episode_return=record.episode_return,
            initial=record.initial,
            last=last,
            reply=last if record.reply == record.last else environment_pb2.StepResult.FromString(record.reply),
            answered=(record.answered_index, record.answered_action),
        )
        return _Revived(episode, record)

    def _why_lost(self, revived: _Revived) -> str:
        """Why an episode cannot go on; empty if it can."""
        record, name = revived.record, revived.record.request.task.environment
        spec = self._specs.get(name)
        if revived.damage:
            return revived.damage
        if spec is None:
            return f"the server was started again without environment {name}"
        if not spec.is_replayable:
            return f"the server was started again, and {name} cannot be replayed (determinism NONE)"
        before, now = (record.environment_version, record.data_hash), (spec.version, spec.data_hash)
        if before != now:
            return (
                f"the server was started again with {name} {now[0]} (data {now[1]}), and the episode was played on"
                f" {before[0]} (data {before[1]})"
            )
        return ""


def _unserved(record: EpisodeRecord) -> EnvironmentSpec:
    """Stands in for an environment that is not served any more."""
    return EnvironmentSpec(
        name=record.request.task.environment,
        version=record.environment_version,
        data_hash=record.data_hash,
        action_format="",
        max_turns=record.max_turns,
        determinism=Determinism.NONE,
    )
