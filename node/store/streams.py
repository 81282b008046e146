"""Resumable generations on disk: what was asked, every entry, how it ended.

A generation belongs to an owner (a digest of the API key); nobody else may read it. Everything is bounded by age and by
bytes: the oldest ended generation gives way first, and its id is remembered for a while, so that whoever asks for it
hears "evicted" and not "unknown".
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import sqlite_utils

from node.errors import EngineFailed, Forbidden, Gone, NotFound
from node.generation import End, Entry, Failed, Finished, Logprob, Request, Token
from node.store.db import MIGRATIONS, Database, give_back

log = logging.getLogger(__name__)

REMEMBERED = 10_000  # ids of evicted generations
_MOST_TOLD = 1000  # generations that cannot be stored, and of which that was told
_RECORD_BYTES = 512  # what a generation costs besides its request and entries, counted generously

Done = Callable[[Exception | None], None]
_Row = tuple[str, int | None, bytes, Logprob | None]
_rows = msgspec.msgpack.Decoder(list[_Row])
_request = msgspec.msgpack.Decoder(Request)
_finished = msgspec.msgpack.Decoder(Finished)
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class StoredStream:
    """One generation as the store knows it. `origin` is what the server needs to form its answer again."""

    owner: bytes
    request: Request
    origin: bytes
    created: float
    entries: tuple[Entry, ...] = ()
    end: End | None = None


@MIGRATIONS()
def m001_streams(db: sqlite_utils.Database) -> None:
    """Generations, their entries in the groups they were written in, and the ids of those that were evicted."""
    db.execute(
        "CREATE TABLE streams (id TEXT PRIMARY KEY, owner BLOB NOT NULL, request BLOB NOT NULL, origin BLOB NOT NULL,"
        " created REAL NOT NULL, ended REAL, end BLOB, bytes INTEGER NOT NULL) WITHOUT ROWID"
    )
    db.execute(
        "CREATE TABLE entries (stream TEXT NOT NULL REFERENCES streams ON DELETE CASCADE, first INTEGER NOT NULL,"
        " data BLOB NOT NULL, PRIMARY KEY (stream, first)) WITHOUT ROWID"
    )
    db.execute("CREATE TABLE evicted (id TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID")


class StreamStore:
    """Keeps generations in a database; also the `Recorder` of their sessions."""

    def __init__(self, database: Database, max_bytes: int, max_age_s: float) -> None:
        self._database = database
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._pending: list[tuple[str, int, Sequence[Entry], End | None, Done]] = []
        self.failures = 0
        # Generations whose last write failed, oldest first: each is told once, not once a token and try for its end.
        self._failing: dict[str, None] = {}

    async def open(self, stored: StoredStream) -> None:
        """Keep a new generation before its first token."""
        request, origin = _encode(stored.request), stored.origin
        size = len(request) + len(origin) + _RECORD_BYTES
        row = (stored.request.id, stored.owner, request, origin, stored.created, size)
        await self._database.run(
            lambda db: (
                db.execute(
                    "INSERT INTO streams (id, owner, request, origin, created, bytes) VALUES (?, ?, ?, ?, ?, ?)", row
                ).rowcount
            )
        )

    def record(self, id: str, first: int, entries: Sequence[Entry], end: End | None, done: Done) -> None:
        """Store a session's entries; all sessions that write in one turn of the event loop share one transaction."""
        if not self._pending:
            asyncio.get_running_loop().call_soon(self._flush)
        self._pending.append((id, first, entries, end, done))

    async def load(self, id: str, owner: bytes) -> StoredStream:
        """A generation with all its entries; raises NotFound, Gone or Forbidden."""
        try:
            found = await self._database.run(lambda db: _load(db, id) or _was_evicted(db, id))
        except msgspec.MsgspecError as error:
            log.error("a stored generation cannot be read", extra={"id": id, "reason": str(error)})
            raise Gone(f"The generation {id} cannot be read any more.") from error
        if isinstance(found, bool):
            if found:
                raise Gone(f"The generation {id} was evicted; its text is not here any more.")
            raise NotFound(f"There is no generation {id}.", param="id")
        if found.owner != owner:
            raise Forbidden("This generation belongs to another API key.")
        return found

    async def unfinished(self) -> list[StoredStream]:
        """Generations without an end, oldest first: what a dead process left behind."""

        def job(db: sqlite3.Connection) -> list[StoredStream]:
            ids = [row[0] for row in db.execute("SELECT id FROM streams WHERE end IS NULL ORDER BY created")]
            return [stored for id in ids if (stored := _take_up(db, id))]

        return await self._database.run(job)

    async def prune(self) -> int:
        """Evict what is too old, then the oldest ended ones until the rest fits; returns how many went."""
        now = time.time()
        return await self._database.run(lambda db: _prune(db, now, self._max_age_s, self._max_bytes))

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        for id, first, entries, end, done in pending:
            self._database.post(_writing(id, first, entries, end), self._reporting(id, done))

    def _reporting(self, id: str, done: Done) -> Callable[[object, Exception | None], None]:
        def report(_: object, error: Exception | None) -> None:
            if error is None:
                self._failing.pop(id, None)
            else:
                self.failures += 1
                self._tell_once(id, error)
            done(error)

        return report

    def _tell_once(self, id: str, error: Exception) -> None:
        if id not in self._failing:
            told = {"id": id, "reason": str(error)}
            log.error("entries could not be stored; their stream goes on in memory", extra=told)
            self._failing[id] = None
            if len(self._failing) > _MOST_TOLD:
                del self._failing[next(iter(self._failing))]


def _writing(id: str, first: int, entries: Sequence[Entry], end: End | None) -> Callable[[sqlite3.Connection], None]:
    now = time.time()
    return lambda db: _write(db, id, first, entries, end, now)


def _write(db: sqlite3.Connection, id: str, first: int, entries: Sequence[Entry], end: End | None, now: float) -> None:
    if entries:
        data = _encode([_row(entry) for entry in entries])
        db.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", (id, first, data))
    if end is not None:
        _compact(db, id)
        told = _encode(end) if isinstance(end, Finished) else b""
        size = "(SELECT COALESCE(SUM(LENGTH(data)), 0) FROM entries WHERE stream = ?1)"
        db.execute(f"UPDATE streams SET end = ?2, ended = ?3, bytes = bytes + {size} WHERE id = ?1", (id, told, now))


def _compact(db: sqlite3.Connection, id: str) -> None:
    """One row instead of one a step: it is smaller, and read at once."""
    data, _ = _contiguous(db, id)
    db.execute("DELETE FROM entries WHERE stream = ?", (id,))
    if data:
        db.execute("INSERT INTO entries VALUES (?, 0, ?)", (id, _encode(data)))


def _load(db: sqlite3.Connection, id: str) -> StoredStream | None:
    row = db.execute("SELECT owner, request, origin, created, end FROM streams WHERE id = ?", (id,)).fetchone()
    if row is None:
        return None
    owner, request, origin, created, end = row
    rows, whole = _contiguous(db, id)
    entries = tuple(_entry(*fields) for fields in rows)
    told = _end(end) if whole or end is None else Failed(EngineFailed("Part of this answer could not be stored."))
    return StoredStream(owner, _request.decode(request), origin, created, entries, told)


def _contiguous(db: sqlite3.Connection, id: str) -> tuple[list[_Row], bool]:
    """The entries up to the first number that is missing, and whether that is all; a group may overlap the one before.

    A group that could not be written (disk full) is written again with what came next.
    """
    rows: list[_Row] = []
    for first, blob in db.execute("SELECT first, data FROM entries WHERE stream = ? ORDER BY first", (id,)):
        if first > len(rows):
            return rows, False
        rows += _rows.decode(blob)[len(rows) - first :]
    return rows, True


def _take_up(db: sqlite3.Connection, id: str) -> StoredStream | None:
    """An unfinished generation to go on with; what lies beyond a gap is lost. One that cannot be read is ended."""
    try:
        stored = _load(db, id)
    except msgspec.MsgspecError as error:
        log.error("a stored generation cannot be read and is given up", extra={"id": id, "reason": str(error)})
        db.execute("UPDATE streams SET end = x'', ended = ? WHERE id = ?", (time.time(), id))
        return None
    if stored is not None:
        db.execute("DELETE FROM entries WHERE stream = ? AND first >= ?", (id, len(stored.entries)))
    return stored


def _was_evicted(db: sqlite3.Connection, id: str) -> bool:
    return db.execute("SELECT 1 FROM evicted WHERE id = ?", (id,)).fetchone() is not None


def _prune(db: sqlite3.Connection, now: float, max_age_s: float, max_bytes: int) -> int:
    doomed = [row[0] for row in db.execute("SELECT id FROM streams WHERE ended < ?", (now - max_age_s,))]
    total = db.execute("SELECT COALESCE(SUM(bytes), 0) FROM streams").fetchone()[0]
    aged = set(doomed)
    for id, size in db.execute("SELECT id, bytes FROM streams WHERE end IS NOT NULL ORDER BY ended"):
        if total <= max_bytes:
            break
        total -= size
        if id not in aged:
            doomed.append(id)
    for id in doomed:
        db.execute("DELETE FROM streams WHERE id = ?", (id,))
        db.execute("INSERT OR REPLACE INTO evicted VALUES (?, ?)", (id, now))
    if doomed:
        db.execute(
            "DELETE FROM evicted WHERE id NOT IN (SELECT id FROM evicted ORDER BY at DESC LIMIT ?)", (REMEMBERED,)
        )
        give_back(db)
    return len(doomed)


def _row(entry: Entry) -> tuple[Any, ...]:
    token = entry.token
    return (entry.text, None, b"", None) if token is None else (entry.text, token.id, token.piece, token.logprob)


def _entry(text: str, id: int | None, piece: bytes, logprob: Logprob | None) -> Entry:
    return Entry(text, None if id is None else Token(id, piece, logprob))


def _end(data: bytes | None) -> End | None:
    """An end that was a failure is told as one; its words were for the reader of that time."""
    if data is None:
        return None
    if data:
        return _finished.decode(data)
    return Failed(EngineFailed("This generation failed."))
