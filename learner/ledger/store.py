"""The ledger as one object: tables behind one connection and one transaction.

Invariant: the ledger belongs to the thread that opened it (SQLite checks that), and everything that leaves the learner
because of a change leaves after the commit of that change.
"""

from __future__ import annotations

import logging
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from learner.ledger.batches import BatchTable
from learner.ledger.groups import GroupTable, SlotRules
from learner.ledger.schema import SCHEMA_VERSION, LedgerError, open_ledger_file
from learner.ledger.versions import VersionTable
from longturn.errors import ConfigError
from longturn.task_file import TaskEntry

logger = logging.getLogger(__name__)


class Ledger:
    """Slots, groups, batches and versions of one run."""

    def __init__(
        self,
        path: Path,
        *,
        facts: Mapping[str, str],
        groups_per_step: int,
        group_size: int,
        max_slot_failures: int,
        task_of_slot: Callable[[int], TaskEntry],
        must_exist: bool = False,
        task_of_refill: Callable[[int, int], TaskEntry] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open or create the ledger of a run; ConfigError if it `must_exist` and does not.

        `facts` are the settings that fix its slots, by the name of the setting: they are stored at the first start,
        and a later start with another value raises ConfigError.
        """
        self._path = path
        self._connection = open_ledger_file(path, must_exist=must_exist)
        with self.transaction():
            self.run_id = self._fact("run_id", uuid.uuid4().hex)
            for name, value in facts.items():
                self._check_fact(name, value)
        self.versions = VersionTable(self._connection, clock=clock)
        self.batches = BatchTable(self._connection, groups_per_step=groups_per_step, clock=clock)
        rules = SlotRules(
            run_id=self.run_id,
            groups_per_step=groups_per_step,
            group_size=group_size,
            max_slot_failures=max_slot_failures,
            task_of_slot=task_of_slot,
            task_of_refill=task_of_refill or (lambda batch, index: task_of_slot(index)),
        )
        self.groups = GroupTable(self._connection, self.versions, rules, clock=clock)

    @property
    def can_refill(self) -> bool:
        """Whether the file knows refills: one that an earlier version made does not."""
        found = self._connection.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchone()[0]
        return found == SCHEMA_VERSION

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit, flushed to the disk, at the end of the block; roll back if it raises.

        Raises LedgerError if SQLite cannot write, for example because the disk is full.
        """
        try:
            self._connection.execute("BEGIN")
            yield
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            raise LedgerError(
                f"the ledger {self._path} cannot be written: {error}; free some disk space, then start again with "
                "--resume auto: nothing that was acknowledged is lost"
            ) from error
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def start_epoch(self, *, training_step: int, batches_consumed: int, config_digest: str) -> int:
        """In one transaction: begin a run epoch, reopen every batch that the loaded weights do not hold, and give up
        evaluations of weights that are lost.
        """
        with self.transaction():
            num_consumed = self.batches.num_consumed
            if batches_consumed > num_consumed:
                raise LedgerError(
                    f"the checkpoint consumed {batches_consumed} batches, the ledger {self._path} only {num_consumed};"
                    " they belong to different runs: restore the one that is not of this run, or start another run"
                    " folder (learner.run_dir)"
                )
            run_epoch = self.versions.start_epoch(
                training_step=training_step, batches_consumed=batches_consumed, config_digest=config_digest
            )
            num_reopened = self.batches.reopen(batches_consumed=batches_consumed, run_epoch=run_epoch)
            self.groups.drop_evaluations_after(training_step)
        if num_reopened:
            logger.warning(
                "the ledger is ahead of the checkpoint; the batches that it lacks are trained again",
                extra={
                    "checkpoint_batches": batches_consumed,
                    "ledger_batches": num_consumed,
                    "reopened": num_reopened,
                },
            )
        return run_epoch

    def refuse_lost_checkpoints(self, checkpoints: Path) -> None:
        """For a start without a checkpoint: LedgerError if batches were trained, which no run is without one."""
        with self.transaction():
            num_consumed = self.batches.num_consumed
        if num_consumed:
            raise LedgerError(
                f"the ledger {self._path} holds {num_consumed} batches that were trained or skipped, but there is no"
                f" checkpoint in {checkpoints}; restore one, or start another run folder (learner.run_dir)"
            )

    def _fact(self, name: str, value: str) -> str:
        self._connection.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (name, value))
        return self._connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()[0]

    def _check_fact(self, name: str, value: str) -> None:
        stored = self._fact(name, value)
        if stored != value:
            raise ConfigError(
                f"learner.{name} is {value}, but the run in {self._path.parent} was started with {stored}; "
                "restore the setting or start another run folder"
            )

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
