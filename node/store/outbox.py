"""What waits for the network, on disk: accepted only after an fsync, gone only after its receiver has it.

One database of its own in WAL mode with `synchronous=FULL`, asserted when it is opened: `put` returns after the commit,
so that neither a kill nor a power cut loses what was accepted. An item stays until `delivered`, which is called when
its receiver answered with its id; a process that dies in between delivers again, so receivers drop what they know.

Bounded by bytes (rows of deferred requests included) and by age. What has expired goes first, then deferred answers
that were fetched, then what `backlog` calls lossy, the lowest priority and the oldest first; if all that is not enough,
the newcomer is refused, and nothing is dropped for it. Everything that is dropped is counted and logged.
"""

from __future__ import annotations

import hashlib
import logging
import math
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlite_utils
import zstandard
from sqlite_utils.migrations import Migrations

from node.errors import OutboxFull
from node.store.backlog import LOSSY, PRIORITIES, Priority, Steps, displaced, uuid7
from node.store.db import Database, give_back

log = logging.getLogger(__name__)

OUTBOX = Migrations("outbox")
MOST_BODY: Final = 16 << 20
ROW_BYTES: Final = 256  # what a row costs besides its body, counted generously
REMEMBERED: Final = 10_000  # ids of deferred requests that are gone
_SPARE_PAGES = 100
_PACKED_FROM = 128  # bytes; what is smaller gains nothing
_GAIN = 0.97
_FULL_RETRY_S = 60


@dataclass(frozen=True, slots=True)
class Item:
    """Something to deliver; `body` as it was put. `created` is wall-clock seconds; it was tried `attempts` times."""

    id: str
    key: str
    stream: str
    priority: Priority
    created: float
    attempts: int
    body: bytes


@OUTBOX()
def m001_outbox(db: sqlite_utils.Database) -> None:
    """Items in the order in which they were put; deferred requests and their answers; what is counted."""
    db.execute(
        "CREATE TABLE outbox (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, key TEXT NOT NULL UNIQUE,"
        " stream TEXT NOT NULL, priority INTEGER NOT NULL, created REAL NOT NULL, expires REAL NOT NULL,"
        " attempts INTEGER NOT NULL DEFAULT 0, next_at REAL NOT NULL DEFAULT 0, packed INTEGER NOT NULL,"
        " body BLOB NOT NULL, sha256 BLOB NOT NULL, bytes INTEGER NOT NULL)"
    )
    db.execute("CREATE INDEX outbox_order ON outbox (priority, seq)")
    db.execute(
        "CREATE TABLE later (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner BLOB NOT NULL,"
        " user TEXT NOT NULL, key BLOB UNIQUE, content BLOB NOT NULL, path TEXT NOT NULL, level TEXT NOT NULL,"
        " urgency INTEGER NOT NULL, request BLOB NOT NULL, callback TEXT NOT NULL, created REAL NOT NULL,"
        " expires REAL NOT NULL, attempts INTEGER NOT NULL DEFAULT 0, next_at REAL NOT NULL DEFAULT 0,"
        " status INTEGER NOT NULL DEFAULT 0, answer BLOB, fetched INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL)"
    )
    db.execute("CREATE INDEX later_order ON later (status, urgency, seq)")
    db.execute("CREATE TABLE later_gone (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE)")
    db.execute(
        "CREATE TRIGGER later_goes AFTER DELETE ON later"
        " BEGIN INSERT OR REPLACE INTO later_gone (id) VALUES (OLD.id); END"
    )
    db.execute("CREATE TABLE counts (name TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID")
    db.execute("CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
    db.execute("INSERT INTO counts VALUES ('bytes', 0)")
    for table in ("outbox", "later"):
        _weigh(db, table)


def _weigh(db: sqlite_utils.Database, table: str) -> None:
    """Keep the sum of `table`'s column `bytes` in the count that `room` goes by: it is asked for at every `put`."""
    add = "BEGIN UPDATE counts SET number = number {} WHERE name = 'bytes'; END"
    db.execute(f"CREATE TRIGGER {table}_in AFTER INSERT ON {table} {add.format('+ NEW.bytes')}")
    db.execute(f"CREATE TRIGGER {table}_out AFTER DELETE ON {table} {add.format('- OLD.bytes')}")
    db.execute(f"CREATE TRIGGER {table}_by AFTER UPDATE OF bytes ON {table} {add.format('- OLD.bytes + NEW.bytes')}")


@OUTBOX()
def m002_cloud(db: sqlite_utils.Database) -> None:
    """What a deferred request's caller said of the cloud; of those from before nobody knows, so that they stay here."""
    db.execute("ALTER TABLE later ADD COLUMN cloud TEXT NOT NULL DEFAULT 'never'")


class Outbox:
    """The items of a node. `hurry` is called when there is something new to deliver."""

    def __init__(
        self,
        database: Database,
        max_bytes: int,
        max_age_s: float,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._max_bytes, self._max_age_s = max_bytes, max_age_s
        self._clock, self._steady = clock, steady
        self._steps = Steps(clock(), steady())
        self._depth: Mapping[str, Any] = {}
        self.hurry: Callable[[], None] = lambda: None

    @property
    def max_age_s(self) -> float:
        """How long anything is kept that names no time itself."""
        return self._max_age_s

    def now(self) -> float:
        """The wall clock that its rows are stamped with."""
        return self._clock()

    async def put(
        self,
        stream: str,
        body: bytes,
        *,
        priority: Priority = "status",
        key: str = "",
        expires_s: float | None = None,
    ) -> str:
        """Accept `body` for delivery; returns its id once it is safe. The same `key` again gives the id of the first.

        Raises OutboxFull when it does not fit, StoreFailed when the disk cannot take it.
        """
        insert = self.putting(stream, body, priority=priority, key=key, expires_s=expires_s)
        id, dropped = await self._database.run(insert)
        told(dropped)
        self.hurry()
        return id

    def putting(
        self,
        stream: str,
        body: bytes,
        *,
        priority: Priority = "status",
        key: str = "",
        expires_s: float | None = None,
        must: bool = False,
    ) -> Callable[[sqlite3.Connection], tuple[str, Mapping[str, int]]]:
        """`put` as a part of another transaction; `must` takes it also where there is no room."""
        if len(body) > MOST_BODY:
            raise OutboxFull(f"An item of the outbox may have {MOST_BODY} bytes, not {len(body)}.")
        now = self._clock()
        id = uuid7(int(now * 1000), secrets.token_bytes(10))
        packed, stored = _pack(body)
        kept_s = self._max_age_s if expires_s is None else min(expires_s, self._max_age_s)
        size = len(stored) + ROW_BYTES
        row = (
            id,
            key or id,
            stream,
            PRIORITIES.index(priority),
            now,
            now + kept_s,
            packed,
            stored,
            _digest(body),
            size,
        )

        def job(db: sqlite3.Connection) -> tuple[str, Mapping[str, int]]:
            if known := db.execute("SELECT id FROM outbox WHERE key = ?", (key or id,)).fetchone():
                return known[0], {}
            dropped = {} if must else self.room(db, size, priority, now)
            db.execute(
                "INSERT INTO outbox (id, key, stream, priority, created, expires, packed, body, sha256, bytes)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                row,
            )
            return id, dropped

        return job

    def room(self, db: sqlite3.Connection, size: int, priority: Priority, now: float) -> dict[str, int]:
        """Make room for `size` bytes, or raise OutboxFull; gives what was dropped. Part of a transaction."""
        excess = _bytes(db) + size - self._max_bytes
        if excess <= 0:
            return {}
        dropped = _expire(db, now)
        excess = _bytes(db) + size - self._max_bytes
        doomed = displaced(excess, _candidates(db, PRIORITIES.index(priority)))
        if doomed is None:
            raise OutboxFull(
                f"The outbox is full ({self._max_bytes} bytes of things that may not be dropped).",
                hint="It empties when its receivers can be reached; outbox.max_bytes is its size.",
                retry_after=_FULL_RETRY_S,
            )
        for number in doomed:
            table, key, name = ("outbox", "seq", "dropped") if number > 0 else ("later", "seq", "forgotten")
            db.execute(f"DELETE FROM {table} WHERE {key} = ?", (abs(number),))
            dropped[name] = dropped.get(name, 0) + 1
        count(db, dropped)
        return dropped

    async def take(self, most_bytes: int, *, stream: str | None = None, without: Sequence[str] = ()) -> list[Item]:
        """What is to be delivered next, in order; at least one if there is any. `without` leaves streams out."""
        now = self._clock()
        out = "".join(" AND stream <> ?" for _ in without)
        only, wanted = (" AND stream = ?", [stream]) if stream else ("", [])
        query = (
            "SELECT id, key, stream, priority, created, attempts, packed, body, sha256, seq FROM outbox"
            f" WHERE next_at <= ?{only}{out} ORDER BY priority, seq"
        )

        def job(db: sqlite3.Connection) -> tuple[list[Item], int]:
            items: list[Item] = []
            used, damaged = 0, 0
            for row in db.execute(query, (now, *wanted, *without)):
                item = _item(row)
                if item is None:
                    db.execute("DELETE FROM outbox WHERE seq = ?", (row[-1],))
                    damaged += 1
                    continue
                used += len(item.body) + ROW_BYTES
                if items and used > most_bytes:
                    break
                items.append(item)
            count(db, {"damaged": damaged})
            return items, damaged

        items, damaged = await self._database.run(job)
        told({"damaged": damaged})
        return items

    async def delivered(self, ids: Sequence[str]) -> None:
        """Their receiver has them: forget them."""

        def job(db: sqlite3.Connection) -> None:
            db.executemany("DELETE FROM outbox WHERE id = ?", [(id,) for id in ids])
            count(db, {"delivered": len(ids)})

        await self._database.run(job)

    async def failed(self, ids: Sequence[str], pause_s: float = 0.0) -> None:
        """Their receiver could not be told: keep them, and leave them for `pause_s` seconds."""
        next_at = self._clock() + pause_s if pause_s else 0.0
        rows = [(next_at, id) for id in ids]
        await self._database.run(
            lambda db: (
                db.executemany("UPDATE outbox SET attempts = attempts + 1, next_at = ? WHERE id = ?", rows).rowcount
            )
        )

    async def withdraw(self, key: str) -> None:
        """What was put under this key is not wanted any more."""
        await self._database.run(lambda db: db.execute("DELETE FROM outbox WHERE key = ?", (key,)).rowcount)

    async def sweep(self) -> None:
        """Drop what has expired, follow a clock that was set, and look how deep it is."""
        now = self._clock()
        step = self._steps.step(now, self._steady())

        def job(db: sqlite3.Connection) -> dict[str, int]:
            if step:
                shift(db, step)
            expired = _expire(db, now)
            count(db, expired)
            db.execute("DELETE FROM later_gone WHERE seq <= (SELECT MAX(seq) FROM later_gone) - ?", (REMEMBERED,))
            give_back(db, _SPARE_PAGES)
            return expired

        if step:
            log.warning("the clock was set; what waits is kept for as long as before", extra={"by_s": round(step)})
        told(await self._database.run(job))
        await self.look()

    async def look(self) -> Mapping[str, Any]:
        """Count what is there, for `depth`."""
        now = self._clock()

        def job(db: sqlite3.Connection) -> dict[str, Any]:
            rows = dict(db.execute("SELECT priority, COUNT(*) FROM outbox GROUP BY priority"))
            oldest = db.execute("SELECT MIN(created) FROM outbox").fetchone()[0]
            counts = dict(db.execute("SELECT name, number FROM counts"))
            return {
                "waiting": sum(rows.values()),
                **{name: rows.get(number, 0) for number, name in enumerate(PRIORITIES)},
                "oldest_s": None if oldest is None else max(0.0, now - oldest),
                "used_bytes": counts.pop("bytes"),
                "most_bytes": self._max_bytes,
                **{name: counts.get(name, 0) for name in ("delivered", "dropped", "expired", "damaged", "forgotten")},
            }

        self._depth = await self._database.run(job)
        return self._depth

    @property
    def depth(self) -> Mapping[str, Any]:
        """What the last look saw."""
        return self._depth

    async def node_id(self) -> str:
        """This node's name to its receivers: random, made once, and not derived from any hardware."""
        fresh = secrets.token_hex(8)

        def job(db: sqlite3.Connection) -> str:
            db.execute("INSERT OR IGNORE INTO facts VALUES ('node', ?)", (fresh,))
            return str(db.execute("SELECT value FROM facts WHERE name = 'node'").fetchone()[0])

        return await self._database.run(job)


def count(db: sqlite3.Connection, numbers: Mapping[str, int]) -> None:
    """Add to the counts that outlive the process."""
    for name, number in numbers.items():
        if number:
            db.execute(
                "INSERT INTO counts VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET number = number + ?2",
                (name, number),
            )


def told(dropped: Mapping[str, int]) -> None:
    """Say what was lost."""
    if lost := {name: number for name, number in dropped.items() if number}:
        log.warning("something that waited was given up", extra=lost)


def shift(db: sqlite3.Connection, by: float) -> None:
    """The clock was set: every time on disk moves with it."""
    for table in ("outbox", "later"):
        db.execute(f"UPDATE {table} SET created = created + ?1, expires = expires + ?1, next_at = 0", (by,))


def _bytes(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT number FROM counts WHERE name = 'bytes'").fetchone()[0])


def _expire(db: sqlite3.Connection, now: float) -> dict[str, int]:
    gone = sum(db.execute(f"DELETE FROM {table} WHERE expires <= ?", (now,)).rowcount for table in ("outbox", "later"))
    return {"expired": gone} if gone else {}


def _candidates(db: sqlite3.Connection, priority: int) -> Iterator[tuple[int, int]]:
    """What may be dropped for a newcomer, in order; deferred answers that were fetched under negative numbers."""
    yield from db.execute("SELECT -seq, bytes FROM later WHERE fetched ORDER BY seq").fetchall()
    for lossy in (number for number in reversed(range(len(PRIORITIES))) if PRIORITIES[number] in LOSSY):
        if lossy >= priority:
            yield from db.execute("SELECT seq, bytes FROM outbox WHERE priority = ? ORDER BY seq", (lossy,)).fetchall()


def _item(row: tuple[Any, ...]) -> Item | None:
    """A row as it was put; None where the disk has changed it."""
    id, key, stream, priority, created, attempts, packed, stored, digest, _ = row
    try:
        body = zstandard.ZstdDecompressor().decompress(stored, max_output_size=MOST_BODY) if packed else stored
    except zstandard.ZstdError:
        return None
    if _digest(body) != digest or not math.isfinite(created):
        return None
    return Item(id, key, stream, PRIORITIES[priority], created, attempts, body)


def _pack(body: bytes) -> tuple[bool, bytes]:
    if len(body) < _PACKED_FROM:
        return False, body
    packed = zstandard.ZstdCompressor(level=3).compress(body)
    return (True, packed) if len(packed) <= _GAIN * len(body) else (False, body)


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()
