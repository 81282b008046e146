"""What a hub has received from the outboxes of its nodes: safe before it is acknowledged, and never twice.

One database of its own with `synchronous=FULL`. An item is known by its node and id, and by its node and key; what
comes again is acknowledged and dropped. A node belongs to the API key that it first came with, unless somebody proves
by a certificate to be that node. Each node may keep so
many bytes; beyond that its oldest figures, then its oldest other items, lose their bodies, but not their ids, so that
they stay known.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlite_utils
from sqlite_utils.migrations import Migrations

from node.errors import Forbidden, Overloaded
from node.store.db import Database

INBOX = Migrations("inbox")
MOST_NODES: Final = 10_000
REMEMBERED: Final = 100_000  # ids of a node that are known
MESH_USER: Final = "mesh:"  # and a node's id: it proved by its certificate that it is this one
RECORDS: Final = "node"  # the stream of a node's figures, of which the latest is shown
_ROW_BYTES = 128


@dataclass(frozen=True, slots=True)
class Received:
    """An item as it came; `at` is when, in wall-clock seconds of the hub, `created` in those of the node."""

    node: str
    id: str
    key: str
    stream: str
    priority: str
    created: float
    body: bytes
    at: float = 0.0


@INBOX()
def m001_inbox(db: sqlite_utils.Database) -> None:
    """Nodes and when each was last heard of, and what they sent in the order in which it came."""
    db.execute(
        "CREATE TABLE nodes (id TEXT PRIMARY KEY, user TEXT NOT NULL, first REAL NOT NULL, last REAL NOT NULL,"
        " received INTEGER NOT NULL DEFAULT 0, again INTEGER NOT NULL DEFAULT 0, record BLOB) WITHOUT ROWID"
    )
    db.execute(
        "CREATE TABLE received (number INTEGER PRIMARY KEY AUTOINCREMENT, node TEXT NOT NULL, id TEXT NOT NULL,"
        " key TEXT NOT NULL, stream TEXT NOT NULL, priority TEXT NOT NULL, created REAL NOT NULL, at REAL NOT NULL,"
        " body BLOB, bytes INTEGER NOT NULL, UNIQUE (node, id), UNIQUE (node, key))"
    )
    db.execute("CREATE INDEX received_streams ON received (stream, node, number)")


class Inbox:
    """The items of all nodes; at most `node_bytes` of each."""

    def __init__(
        self, database: Database, node_bytes: int, max_age_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._node_bytes, self._max_age_s = node_bytes, max_age_s
        self._clock = clock
        self._seen: Sequence[Mapping[str, Any]] = ()

    async def take(self, node: str, user: str, items: Sequence[Received]) -> int:
        """Store what is new of `items`; returns how many were, after the commit. Raises Forbidden and Overloaded."""
        now = self._clock()

        def job(db: sqlite3.Connection) -> int:
            _greet(db, node, user, now)
            new = sum(_insert(db, item, now) for item in items)
            db.execute(
                "UPDATE nodes SET last = ?, received = received + ?, again = again + ? WHERE id = ?",
                (now, new, len(items) - new, node),
            )
            if records := [item.body for item in items if item.stream == RECORDS]:
                db.execute("UPDATE nodes SET record = ? WHERE id = ?", (records[-1], node))
            _bound(db, node, self._node_bytes)
            return new

        return await self._database.run(job)

    async def sweep(self) -> None:
        """Forget what is too old, and look who is there."""
        before = self._clock() - self._max_age_s
        await self._database.run(lambda db: db.execute("DELETE FROM received WHERE at < ?", (before,)).rowcount)
        await self.nodes()

    async def nodes(self) -> Sequence[Mapping[str, Any]]:
        """All nodes, who was heard of last first: id, `seen_s` ago, counts, and its latest record or None."""
        now = self._clock()

        def job(db: sqlite3.Connection) -> list[dict[str, Any]]:
            query = "SELECT id, last, first, received, again, record FROM nodes ORDER BY last DESC"
            return [
                {
                    **{"id": id, "seen_s": max(0.0, now - last), "known_s": max(0.0, now - first)},
                    **{"received": received, "again": again, "record": record},
                }
                for id, last, first, received, again, record in db.execute(query)
            ]

        self._seen = await self._database.run(job)
        return self._seen

    @property
    def seen(self) -> Sequence[Mapping[str, Any]]:
        """What the last look at the nodes saw."""
        return self._seen

    async def read(self, stream: str, after: int = 0, most: int = 1000) -> list[tuple[int, Received]]:
        """What came in a stream after number `after`, in the order in which it came."""
        query = (
            "SELECT number, node, id, key, stream, priority, created, body, at FROM received"
            " WHERE stream = ? AND number > ? AND body IS NOT NULL ORDER BY number LIMIT ?"
        )
        return await self._database.run(
            lambda db: [(number, Received(*row)) for number, *row in db.execute(query, (stream, after, most))]
        )


def _greet(db: sqlite3.Connection, node: str, user: str, now: float) -> None:
    known = db.execute("SELECT user FROM nodes WHERE id = ?", (node,)).fetchone()
    if known is None:
        if db.execute("SELECT COUNT(*) FROM nodes").fetchone()[0] >= MOST_NODES:
            raise Overloaded(f"This hub knows {MOST_NODES} nodes and takes no more.", retry_after=600)
        db.execute("INSERT INTO nodes (id, user, first, last) VALUES (?, ?, ?, ?)", (node, user, now, now))
    elif known[0] != user and user == MESH_USER + node:
        db.execute("UPDATE nodes SET user = ? WHERE id = ?", (user, node))
    elif known[0] != user:
        raise Forbidden(f"Node {node} came with another API key before.")


def _insert(db: sqlite3.Connection, item: Received, now: float) -> int:
    return db.execute(
        "INSERT OR IGNORE INTO received (node, id, key, stream, priority, created, at, body, bytes)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(item.node, item.id, item.key, item.stream, item.priority, item.created, now, item.body),
            len(item.body) + _ROW_BYTES,
        ),
    ).rowcount


def _bound(db: sqlite3.Connection, node: str, most: int) -> None:
    kept = db.execute(
        "SELECT COALESCE(SUM(bytes), 0) FROM received WHERE node = ? AND body IS NOT NULL", (node,)
    ).fetchone()[0]
    if kept > most:
        rows = db.execute(
            "SELECT number, bytes FROM received WHERE node = ? AND body IS NOT NULL"
            " ORDER BY priority IN ('telemetry', 'log') DESC, number",
            (node,),
        ).fetchall()
        for number, size in rows:
            if kept <= most:
                break
            kept -= size
            db.execute("UPDATE received SET body = NULL WHERE number = ?", (number,))
    db.execute(
        "DELETE FROM received WHERE node = ?1 AND number <="
        " (SELECT number FROM received WHERE node = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2)",
        (node, REMEMBERED),
    )
