"""What a node remembers of updates: the one on its way, how earlier ones ended, and which profiles are not tried again.

Each step is one transaction; a database with `sync` FULL has it on disk before the next thing is done. Without a
database (a node on port 0) the same is kept in memory, and dies with the process.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import msgspec
import sqlite_utils

from node.fleet.directive import Rollout
from node.fleet.rollout import BAD, Outcome, Source, State, Update
from node.store.db import MIGRATIONS, Database

_MOST_DENIED = 1000


@MIGRATIONS()
def m010_updates(db: sqlite_utils.Database) -> None:
    """The update on its way (one row at most), what ended, and digests that failed with the revision they failed at."""
    db.execute("CREATE TABLE updating (id INTEGER PRIMARY KEY CHECK (id = 1), data BLOB NOT NULL)")
    db.execute(
        "CREATE TABLE updated (name TEXT PRIMARY KEY, revision INTEGER NOT NULL, outcome TEXT NOT NULL) WITHOUT ROWID"
    )
    db.execute(
        "CREATE TABLE denied (digest TEXT PRIMARY KEY, revision INTEGER NOT NULL, reason TEXT NOT NULL,"
        " seq INTEGER NOT NULL) WITHOUT ROWID"
    )


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """An update as it is stored."""

    rollout: Rollout
    source: Source
    began: float
    state: State
    steps: int
    deaths: int
    served_s: float
    clean: bool
    outcome: Outcome
    reason: str
    evidence: dict[str, str]


class Memory(msgspec.Struct, frozen=True):
    """What was stored: by rollout its last revision that ended here, by digest the revision that it failed at."""

    update: Update | None = None
    ended: Mapping[str, int] = MappingProxyType({})
    denied: Mapping[str, int] = MappingProxyType({})

    def wants(self, rollout: Rollout) -> bool:
        """Whether this node has not been through this revision, and its profile has not failed at it or after it."""
        fresh = rollout.revision > self.ended.get(rollout.name, 0)
        return fresh and rollout.revision > self.denied.get(rollout.profile_sha256, 0)


class Ledger(Protocol):
    """Where updates are remembered."""

    async def load(self) -> Memory:
        """Everything; raises StoreFailed."""

    async def write(self, update: Update) -> None:
        """The update as it is now, on disk when this returns; an `idle` one is forgotten. Raises StoreFailed."""


class InMemory:
    """For a node that keeps nothing."""

    def __init__(self) -> None:
        self._memory = Memory()

    async def load(self) -> Memory:
        return self._memory

    async def write(self, update: Update) -> None:
        self._memory = after(self._memory, update)


class Installed:
    """In a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self) -> Memory:
        return await self._database.run(_load)

    async def write(self, update: Update) -> None:
        await self._database.run(lambda db: _write(db, update))


def after(memory: Memory, update: Update) -> Memory:
    """What is remembered once `update` is written."""
    name, digest, revision = update.rollout.name, update.rollout.profile_sha256, update.rollout.revision
    ended, denied = dict(memory.ended), dict(memory.denied)
    if update.state == "report" and update.outcome != "dropped":
        ended[name] = max(revision, ended.get(name, 0))
        if update.outcome in BAD:
            denied[digest] = max(revision, denied.get(digest, 0))
    return Memory(None if update.state == "idle" else update, ended, denied)


def _load(db: sqlite3.Connection) -> Memory:
    row = db.execute("SELECT data FROM updating").fetchone()
    update = None
    if row is not None:
        try:
            update = _update(msgspec.msgpack.decode(row[0], type=_Row))
        except msgspec.MsgspecError:  # another version's; what is committed still serves
            db.execute("DELETE FROM updating")
    ended = dict(db.execute("SELECT name, revision FROM updated").fetchall())
    denied = dict(db.execute("SELECT digest, revision FROM denied").fetchall())
    return Memory(update, ended, denied)


def _write(db: sqlite3.Connection, update: Update) -> None:
    rollout = update.rollout
    if update.state == "idle":
        db.execute("DELETE FROM updating")
        return
    db.execute("INSERT OR REPLACE INTO updating (id, data) VALUES (1, ?)", (msgspec.msgpack.encode(_row(update)),))
    if update.state != "report" or update.outcome == "dropped":  # what was called off may be called for again
        return
    db.execute(
        "INSERT INTO updated (name, revision, outcome) VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET"
        " revision = max(revision, excluded.revision), outcome = excluded.outcome",
        (rollout.name, rollout.revision, update.outcome),
    )
    if update.outcome in BAD:
        db.execute(
            "INSERT INTO denied (digest, revision, reason, seq) VALUES"
            " (?, ?, ?, (SELECT coalesce(max(seq), 0) + 1 FROM denied))"
            " ON CONFLICT (digest) DO UPDATE SET revision = max(revision, excluded.revision), reason = excluded.reason",
            (rollout.profile_sha256, rollout.revision, update.reason),
        )
        db.execute("DELETE FROM denied WHERE seq <= (SELECT max(seq) FROM denied) - ?", (_MOST_DENIED,))


def _row(update: Update) -> _Row:
    fields = {name: getattr(update, name) for name in _Row.__struct_fields__}
    return _Row(**fields | {"evidence": dict(update.evidence)})


def _update(row: _Row) -> Update:
    fields = {name: getattr(row, name) for name in _Row.__struct_fields__}
    return Update(**fields | {"evidence": MappingProxyType(row.evidence)})
