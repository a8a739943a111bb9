"""Tables of the ledger, and how its file is opened."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from longturn.errors import ConfigError, LongturnError

SCHEMA_VERSION = "2"
_READABLE = ("1", SCHEMA_VERSION)
"""Version 1 knows no REFILL; a run that needs none goes on in such a ledger."""

_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;

-- A place in a batch. TRAIN: position is the slot number and batch is position // groups_per_step.
-- EVAL: batch is the policy version that is evaluated and position the line of the panel. The reason of a complete one
-- is REPORTED once its row of measures is written.
-- REFILL: a place that was added to a batch for one without signal. Its position counts those of the batch.
CREATE TABLE slots (
  slot_id INTEGER PRIMARY KEY,
  purpose TEXT NOT NULL CHECK (purpose IN ('TRAIN', 'EVAL', 'REFILL')),
  batch INTEGER NOT NULL,
  position INTEGER NOT NULL,
  task BLOB NOT NULL,
  seed TEXT NOT NULL,
  kind TEXT NOT NULL,
  group_size INTEGER NOT NULL,
  state TEXT NOT NULL DEFAULT 'OPEN' CHECK (state IN ('OPEN', 'COMPLETE', 'CLOSED')),
  reason TEXT,
  UNIQUE (purpose, batch, position)
) STRICT;
CREATE INDEX slots_by_state ON slots (state, purpose);

-- What plays in a slot. At most one group of a slot is not FAILED.
CREATE TABLE groups (
  group_id TEXT PRIMARY KEY,
  slot_id INTEGER NOT NULL REFERENCES slots,
  ordinal INTEGER NOT NULL,
  attempt INTEGER NOT NULL DEFAULT 0,
  holder BLOB,
  state TEXT NOT NULL DEFAULT 'OPEN' CHECK (state IN ('OPEN', 'COMPLETE', 'FAILED')),
  reason TEXT,
  message TEXT,
  issued_s REAL NOT NULL,
  ended_s REAL,
  UNIQUE (slot_id, ordinal)
) STRICT;
CREATE INDEX groups_by_state ON groups (state);

CREATE TABLE attempts (
  group_id TEXT NOT NULL REFERENCES groups,
  attempt INTEGER NOT NULL,
  holder BLOB NOT NULL,
  member_indices TEXT NOT NULL,
  issued_s REAL NOT NULL,
  PRIMARY KEY (group_id, attempt)
) STRICT;

CREATE TABLE trajectories (
  group_id TEXT NOT NULL REFERENCES groups,
  member_index INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  start_version INTEGER NOT NULL,
  start_hash BLOB NOT NULL,
  trajectory BLOB NOT NULL,
  received_s REAL NOT NULL,
  PRIMARY KEY (group_id, member_index)
) STRICT;

CREATE TABLE batches (
  batch INTEGER PRIMARY KEY,
  run_epoch INTEGER NOT NULL,
  training_step INTEGER NOT NULL,
  outcome TEXT CHECK (outcome IN ('TRAINED', 'SKIPPED')),
  reason TEXT,
  recorded_s REAL NOT NULL,
  consumed_s REAL
) STRICT;

CREATE TABLE verdicts (
  batch INTEGER NOT NULL REFERENCES batches,
  group_id TEXT NOT NULL REFERENCES groups,
  verdict TEXT NOT NULL,
  score REAL NOT NULL,
  PRIMARY KEY (batch, group_id)
) STRICT;

-- Batches whose step was lost with the weights that held it. They were opened again.
CREATE TABLE reopened (
  run_epoch INTEGER NOT NULL,
  batch INTEGER NOT NULL,
  training_step INTEGER NOT NULL,
  outcome TEXT,
  reason TEXT,
  PRIMARY KEY (run_epoch, batch)
) STRICT;

CREATE TABLE versions (
  policy_version INTEGER PRIMARY KEY,
  run_epoch INTEGER NOT NULL,
  training_step INTEGER NOT NULL,
  announced_s REAL
) STRICT;

CREATE TABLE epochs (
  run_epoch INTEGER PRIMARY KEY,
  training_step INTEGER NOT NULL,
  batches_consumed INTEGER NOT NULL,
  config_digest TEXT NOT NULL,
  started_s REAL NOT NULL
) STRICT;
"""


class LedgerError(LongturnError):
    """The ledger cannot be opened, or does not belong to this run."""

    reason = "LEDGER_ERROR"


def open_ledger_file(path: Path, *, must_exist: bool = False) -> sqlite3.Connection:
    """Open or create a ledger file in WAL mode, every commit flushed to the disk before it returns.

    The connection belongs to the calling thread and leaves transactions to its user.
    """
    if must_exist and not path.is_file():
        raise ConfigError(
            f"there is no ledger at {path}; restore it, or name the folder of another run (learner.run_dir)"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        connection = sqlite3.connect(path, isolation_level=None, timeout=10.0)
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        _create_tables(connection, path)
    except sqlite3.DatabaseError as error:
        raise LedgerError(
            f"the ledger {path} cannot be used: {error}; free space if the disk is full, restore it, or start another "
            "run folder"
        ) from error
    return connection


def _create_tables(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN IMMEDIATE")
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is None:
        for statement in _TABLES.split(";"):
            if statement.strip():
                connection.execute(statement)
        connection.execute("INSERT INTO meta VALUES ('schema_version', ?)", (SCHEMA_VERSION,))
    connection.execute("COMMIT")
    found = connection.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchone()[0]
    if found not in _READABLE:
        raise LedgerError(
            f"the ledger {path} has schema {found}, this version reads {SCHEMA_VERSION}; use another run folder"
        )
