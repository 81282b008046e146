"""Deferred requests: what nobody could answer when it was asked, stored until somebody can, and then its answer.

They share the outbox's database, its fsync and its bound in bytes. A request stays "waiting" on disk while it runs, so
that a process that dies runs it again; its answer, the mark that it is done and the callback that tells of it are ONE
transaction, so that there is never more than one answer. What expired, was cancelled or gave way after it was fetched
is remembered by its id for a while.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from node.errors import Forbidden, Gone, InvalidRequest, NotFound, Overloaded
from node.generation import LEVELS, Level
from node.store.backlog import uuid7
from node.store.db import Database
from node.store.outbox import ROW_BYTES, Outbox, count, told

CALLBACK: Final = "callback"  # the outbox's stream for answers to be delivered
PREFIX: Final = "later-"
_COLUMNS = "id, owner, user, path, level, request, callback, created, expires, attempts, status, answer, content, cloud"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request to be kept. `user` is a key's digest, `owner` whose answer it is; `level` "" is none of its own.

    `cloud` is its caller's word on whether it may leave the fleet; "" is none.

    `key` is the digest of an Idempotency-Key, `content` of what was asked with it. `ttl_s` None is as long as anything.
    """

    owner: bytes
    user: str
    path: str
    level: Level | Any
    request: bytes
    callback: str = ""
    key: bytes | None = None
    content: bytes = b""
    ttl_s: float | None = None
    cloud: Literal["", "allow", "never"] | Any = ""


@dataclass(frozen=True, slots=True)
class Deferred:
    """A request that waits, or its answer: `status` is 0 until it is done, then the HTTP status of `answer`."""

    id: str
    owner: bytes
    user: str
    path: str
    level: Level | Any
    request: bytes
    callback: str
    created: float
    expires: float
    attempts: int
    status: int
    answer: bytes | None
    content: bytes
    cloud: Literal["", "allow", "never"] | Any


class LaterStore:
    """The deferred requests of a node; at most `most_waiting` of them wait."""

    def __init__(self, database: Database, outbox: Outbox, most_waiting: int) -> None:
        self._database = database
        self._outbox = outbox
        self._most_waiting = most_waiting
        self._depth: Mapping[str, Any] = {}

    async def keep(self, wanted: Wanted) -> Deferred:
        """Accept a request; returns once it is safe. The same Idempotency-Key again gives what was kept first.

        Raises OutboxFull, Overloaded when too many wait, InvalidRequest for a key that was used for something else.
        """
        now = self._outbox.now()
        id = PREFIX + uuid7(int(now * 1000), secrets.token_bytes(10))
        ttl_s = min(wanted.ttl_s or self._outbox.max_age_s, self._outbox.max_age_s)
        size = len(wanted.request) + ROW_BYTES
        urgency = LEVELS.index(wanted.level or "background")
        row = (
            *(id, wanted.owner, wanted.user, wanted.key, wanted.content, wanted.path, wanted.level, urgency),
            *(wanted.request, wanted.callback, now, now + ttl_s, size, wanted.cloud),
        )

        def job(db: sqlite3.Connection) -> tuple[Deferred, Mapping[str, int]]:
            if wanted.key and (known := _known(db, wanted.key, wanted.content)):
                return known, {}
            waiting = db.execute("SELECT COUNT(*) FROM later WHERE status = 0").fetchone()[0]
            if waiting >= self._most_waiting:
                raise Overloaded(f"{waiting} requests wait for later already; no more are taken.", retry_after=60)
            dropped = self._outbox.room(db, size, "status", now)
            db.execute(
                "INSERT INTO later (id, owner, user, key, content, path, level, urgency, request, callback, created,"
                " expires, bytes, cloud) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                row,
            )
            kept = _found(db, id)
            assert kept is not None
            return kept, dropped

        kept, dropped = await self._database.run(job)
        told(dropped)
        return kept

    async def known(self, key: bytes, content: bytes) -> Deferred | None:
        """What was kept under this Idempotency-Key; raises InvalidRequest if it was for something else."""
        return await self._database.run(lambda db: _known(db, key, content))

    async def find(self, id: str, owner: bytes) -> Deferred:
        """A request and its answer; raises NotFound, Gone or Forbidden."""
        found = await self._database.run(lambda db: _found(db, id) or _is_gone(db, id))
        if isinstance(found, bool):
            if found:
                raise Gone(f"{id} expired, was cancelled, or gave way after its answer was fetched.")
            raise NotFound(f"There is no deferred request {id}.", param="id")
        if found.owner != owner:
            raise Forbidden("This deferred request belongs to another API key.")
        return found

    async def address_of(self, id: str) -> str:
        """Where its answer is to be sent; "" when nobody waits for it any more."""
        found = await self._database.run(lambda db: _found(db, id))
        return found.callback if found is not None else ""

    async def fetched(self, id: str) -> None:
        """Its owner has the answer: it may give way when there is no room."""
        await self._database.run(lambda db: db.execute("UPDATE later SET fetched = 1 WHERE id = ?", (id,)).rowcount)

    async def next(self, without: frozenset[str]) -> Deferred | None:
        """What is to run next: the most urgent, then the oldest, that is not one of `without`."""
        now = self._outbox.now()
        query = (
            f"SELECT {_COLUMNS} FROM later WHERE status = 0 AND next_at <= ? AND expires > ?"
            f" AND id NOT IN ({', '.join('?' * len(without))}) ORDER BY urgency, seq LIMIT 1"
        )

        def job(db: sqlite3.Connection) -> Deferred | None:
            row = db.execute(query, (now, now, *without)).fetchone()
            return None if row is None else Deferred(*row)

        return await self._database.run(job)

    async def postpone(self, id: str, pause_s: float, *, failed: bool) -> None:
        """It could not be answered: leave it for a while; `failed` counts it as an attempt of its own."""
        row = (int(failed), self._outbox.now() + pause_s, id)
        await self._database.run(
            lambda db: db.execute("UPDATE later SET attempts = attempts + ?, next_at = ? WHERE id = ?", row).rowcount
        )

    async def finish(self, done: Deferred, status: int, answer: bytes) -> bool:
        """Store its answer, with the callback that is to tell of it; False if nobody wants it any more.

        An answer always fits: its request was accepted. It is kept as long as anything is.
        """
        expires = self._outbox.now() + self._outbox.max_age_s
        put = self._outbox.putting(CALLBACK, callback_body(done, status, answer), key=done.id, must=True)

        def job(db: sqlite3.Connection) -> bool:
            changed = db.execute(
                "UPDATE later SET status = ?1, answer = ?2, request = x'', expires = ?3, bytes = ?4"
                " WHERE id = ?5 AND status = 0",
                (status, answer, expires, len(answer) + ROW_BYTES, done.id),
            ).rowcount
            if changed and done.callback:
                put(db)
            count(db, {"answered": changed})
            return bool(changed)

        return await self._database.run(job)

    async def cancel(self, id: str, owner: bytes) -> Deferred:
        """Forget a request, its answer and its callback; raises as `find` does."""
        found = await self.find(id, owner)

        def job(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM later WHERE id = ?", (id,))
            db.execute("DELETE FROM outbox WHERE key = ?", (id,))

        await self._database.run(job)
        return found

    async def look(self) -> Mapping[str, Any]:
        """Count what is there, for `depth`."""
        now = self._outbox.now()

        def job(db: sqlite3.Connection) -> dict[str, Any]:
            waiting, oldest = db.execute("SELECT COUNT(*), MIN(created) FROM later WHERE status = 0").fetchone()
            done = db.execute("SELECT COUNT(*) FROM later WHERE status > 0").fetchone()[0]
            counted = db.execute("SELECT number FROM counts WHERE name = 'answered'").fetchone()
            oldest_s = None if oldest is None else max(0.0, now - oldest)
            return {"waiting": waiting, "oldest_s": oldest_s, "answers": done, "answered": counted[0] if counted else 0}

        self._depth = await self._database.run(job)
        return self._depth

    def hurry(self) -> None:
        """There is a callback to deliver."""
        self._outbox.hurry()

    @property
    def depth(self) -> Mapping[str, Any]:
        """What the last look saw."""
        return self._depth


def callback_body(done: Deferred, status: int, answer: bytes) -> bytes:
    """What a callback gets, as JSON: the id, the status and the answer as it would have been given."""
    return b'{"id":"%s","status":%d,"response":%s}' % (done.id.encode(), status, answer)


def _known(db: sqlite3.Connection, key: bytes, content: bytes) -> Deferred | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM later WHERE key = ?", (key,)).fetchone()
    if row is None:
        return None
    found = Deferred(*row)
    if found.content != content:
        raise InvalidRequest("This `Idempotency-Key` was used for another request.", param="Idempotency-Key")
    return found


def _found(db: sqlite3.Connection, id: str) -> Deferred | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM later WHERE id = ?", (id,)).fetchone()
    return None if row is None else Deferred(*row)


def _is_gone(db: sqlite3.Connection, id: str) -> bool:
    return db.execute("SELECT 1 FROM later_gone WHERE id = ?", (id,)).fetchone() is not None
