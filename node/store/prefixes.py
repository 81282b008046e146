"""Shared prefixes on disk: the nodes of the prompts' tree that many sessions came through, and how often.

Only what `prewarm.tree` calls shared comes here; the text of a single person's prompt never does. Rows belong to a
model, because token ids mean nothing to another one. What is deleted is overwritten in the file (`secure_delete`), and
`forget` ends with a checkpoint that truncates the write-ahead log; what a flash chip keeps below its wear levelling
is out of a program's reach.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import sqlite_utils

from node.store.db import MIGRATIONS, Database


class PrefixRow(NamedTuple):
    """One node. `parent` 0 is a tenant's root; `edge` and `hours` are packed numbers; `last` is wall-clock seconds."""

    id: int
    parent: int
    tenant: str
    edge: bytes
    short: float
    long: float
    last: float
    hours: bytes


_COLUMNS = ", ".join(PrefixRow._fields)
_MARKS = ", ".join("?" * (1 + len(PrefixRow._fields)))


@MIGRATIONS()
def m002_prefixes(db: sqlite_utils.Database) -> None:
    """Nodes of the tree, and since when and on what terms they are kept, for each model."""
    db.execute(
        "CREATE TABLE prefixes (model TEXT NOT NULL, id INTEGER NOT NULL, parent INTEGER NOT NULL,"
        " tenant TEXT NOT NULL, edge BLOB NOT NULL, short REAL NOT NULL, long REAL NOT NULL, last REAL NOT NULL,"
        " hours BLOB NOT NULL,"
        " PRIMARY KEY (model, id)) WITHOUT ROWID"
    )
    db.execute(
        "CREATE TABLE prefix_models (model TEXT PRIMARY KEY, since REAL NOT NULL, terms TEXT NOT NULL) WITHOUT ROWID"
    )


class PrefixStore:
    """Keeps one model's prefixes in a database."""

    def __init__(self, database: Database, model: str) -> None:
        self._database = database
        self._model = model

    async def load(self, terms: str, now: float, max_age_s: float) -> tuple[float, list[PrefixRow]]:
        """When counting began, and all rows in no order. What is too old or was kept on other terms is erased."""

        def job(db: sqlite3.Connection) -> tuple[float, list[PrefixRow]]:
            db.execute("DELETE FROM prefixes WHERE last < ?", (now - max_age_s,))
            known = db.execute("SELECT since, terms FROM prefix_models WHERE model = ?", (self._model,)).fetchone()
            if known is None or known[1] != terms:
                db.execute("DELETE FROM prefixes WHERE model = ?", (self._model,))
                db.execute("INSERT OR REPLACE INTO prefix_models VALUES (?, ?, ?)", (self._model, now, terms))
                return now, []
            rows = db.execute(f"SELECT {_COLUMNS} FROM prefixes WHERE model = ?", (self._model,))
            return known[0], [PrefixRow(*row) for row in rows]

        return await self._database.run(job)

    async def save(self, rows: Sequence[PrefixRow], gone: Iterable[int]) -> None:
        """Write rows, new or changed, and erase others, in one transaction; raises StoreFailed."""
        written = [(self._model, *row) for row in rows]
        erased = [(self._model, id) for id in gone]

        def job(db: sqlite3.Connection) -> None:
            db.executemany("DELETE FROM prefixes WHERE model = ? AND id = ?", erased)
            db.executemany(f"INSERT OR REPLACE INTO prefixes (model, {_COLUMNS}) VALUES ({_MARKS})", written)

        await self._database.run(job)

    async def forget(self, now: float) -> None:
        """Erase all rows, of all models and tenants, and count anew; they are gone from the database's files then."""

        def job(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM prefixes")
            db.execute("UPDATE prefix_models SET since = ?", (now,))

        await self._database.run(job)
        await self._database.truncate_log()
