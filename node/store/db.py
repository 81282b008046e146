"""One SQLite database, owned by one thread.

Jobs are functions of the connection. The thread takes all jobs that wait and runs them in ONE `BEGIN IMMEDIATE`
transaction, each behind a savepoint, so that a burst costs one commit (group commit) and a job that raises harms no
other. Results cross back to the event loop with one call for the whole group, after the commit: who awaits a job knows
that it is stored.

`synchronous=NORMAL` in WAL mode survives the death of the process; `FULL` survives a power cut, for an fsync a commit.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import sqlite_utils
from sqlite_utils.migrations import Migrations

from node.errors import SettingsError, StoreFailed

log = logging.getLogger(__name__)

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], Any]
Done = Callable[[Any, Exception | None], None]

MIGRATIONS = Migrations("node")
_MOST_PAGES = 10_000  # given back at a time: some 40 MB, so that nobody waits long for the thread
_QUIET_S = 60.0  # before the same failure is logged again
_SIDE_FILES = ("", "-wal", "-shm")


class Database:
    """Opened by `open`; `run` and `post` give jobs to its thread; `close` ends it after the last one."""

    def __init__(
        self,
        path: Path,
        sync: Literal["NORMAL", "FULL"] = "NORMAL",
        migrations: Migrations = MIGRATIONS,
        setting: str = "streams.database",
    ) -> None:
        """`migrations` make its tables; `setting` is what names the file, for those who have to mend it."""
        self.path = path.resolve()  # a symbolic link is the same file, and has the same lock
        self._sync = sync
        self._migrations = migrations
        self._setting = setting
        self._wake = threading.Condition()
        self._jobs: list[tuple[Job, Done]] = []
        self._closing = False
        self._thread: threading.Thread | None = None

    async def open(self) -> None:
        """Open or make the file and bring its tables up to date; a corrupt file is set aside, loudly."""
        self._loop = asyncio.get_running_loop()
        self._lock = await asyncio.to_thread(_lock, self.path, self._setting)
        connection = await asyncio.to_thread(_open_or_set_aside, self.path, self._sync, self._migrations, self._setting)
        self._thread = threading.Thread(target=self._serve, args=(connection,), name="store", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Finish what waits, then close the file."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None
            os.close(self._lock)

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run a job in a transaction; returns after its commit. Raises StoreFailed."""
        future: asyncio.Future[T] = self._loop.create_future()
        self.post(job, lambda result, error: _settle(future, result, error))
        return await future

    async def truncate_log(self) -> None:
        """Move what is committed into the file itself and empty the write-ahead log: what was erased is in neither.

        Raises StoreFailed.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        self._add((_truncate_log, lambda result, error: _settle(future, result, error)))
        await future

    def post(self, job: Job, done: Done) -> None:
        """Run a job soon; `done(result, error)` is called on the loop's thread after its commit."""
        self._add((job, done))

    def _add(self, entry: tuple[Job, Done]) -> None:
        with self._wake:
            if self._closing or self._thread is None:
                raise StoreFailed("The store is closed.")
            self._jobs.append(entry)
            self._wake.notify()

    # From here on: the store's thread.

    def _serve(self, connection: sqlite3.Connection) -> None:
        told: dict[str, float] = {}  # until when a reason is not logged again: a full disk fails every transaction
        while True:
            with self._wake:
                while not self._jobs and not self._closing:
                    self._wake.wait()
                jobs, self._jobs = self._jobs, []
                if not jobs:
                    break
            results, failed = _transact(connection, [entry for entry in jobs if entry[0] is not _truncate_log])
            if failed and time.monotonic() >= told.get(failed, 0.0):
                log.error("a transaction failed", extra={"file": self.path.name, "reason": failed, "jobs": len(jobs)})
                told = {failed: time.monotonic() + _QUIET_S}
            results += [(done, *_truncate_log(connection)) for job, done in jobs if job is _truncate_log]
            try:
                self._loop.call_soon_threadsafe(_report, results)
            except RuntimeError:  # the loop is closed: nobody is left to tell
                log.debug("the event loop is gone")
        connection.close()


def give_back(connection: sqlite3.Connection, spare: int = 0) -> None:
    """Free the file's unused pages for the disk, all but `spare` of them; part of a transaction."""
    unused = connection.execute("PRAGMA freelist_count").fetchone()[0]
    for _ in range(min(unused - spare, _MOST_PAGES)):
        connection.execute("PRAGMA incremental_vacuum(1)")  # Python's module takes one step of it, which is one page


def _transact(
    connection: sqlite3.Connection, jobs: list[tuple[Job, Done]]
) -> tuple[list[tuple[Done, Any, Exception | None]], str]:
    """All jobs in one transaction; when that cannot be committed, all of them failed; also says why."""
    results: list[tuple[Done, Any, Exception | None]] = []
    try:
        connection.execute("BEGIN IMMEDIATE")
        for job, done in jobs:
            results.append((done, *_run_one(connection, job)))
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        return [(done, None, error) for _, done in jobs], str(error)
    return results, ""


def _truncate_log(connection: sqlite3.Connection) -> tuple[None, Exception | None]:
    """A checkpoint, which must stand outside of transactions."""
    try:
        busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as error:
        return None, error
    return None, StoreFailed("The write-ahead log could not be emptied: somebody reads the database.") if busy else None


def _run_one(connection: sqlite3.Connection, job: Job) -> tuple[Any, Exception | None]:
    connection.execute("SAVEPOINT job")
    try:
        result = job(connection)
    except Exception as error:  # noqa: BLE001  # a job's fault is its caller's, and must not end the thread
        connection.execute("ROLLBACK TO job")
        connection.execute("RELEASE job")
        return None, error
    connection.execute("RELEASE job")
    return result, None


def _report(results: list[tuple[Done, Any, Exception | None]]) -> None:
    for done, result, error in results:
        done(result, error)


def _settle(future: asyncio.Future[T], result: T, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
        return
    failure = StoreFailed(f"The store could not do this: {error}") if isinstance(error, sqlite3.Error) else error
    future.set_exception(failure)


def _lock(path: Path, setting: str) -> int:
    """Two nodes on one file would both go on with what a third left; the kernel frees the lock of a dead process."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SettingsError(f"Cannot write in {path.parent}: {error.strerror}.") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise SettingsError(
            f"Another node uses {path}.",
            hint=f"Stop that one, or give this one a port of its own (--port), or its own file (--set {setting}=FILE).",
        ) from error
    return handle


def _open_or_set_aside(path: Path, sync: str, migrations: Migrations, setting: str) -> sqlite3.Connection:
    try:
        return _open(path, sync, migrations)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and "malformed" not in str(error):
            raise StoreFailed(
                f"Cannot open {path}: {error}.", hint=f"{setting} must be a file of this node's own."
            ) from error
        aside = path.with_name(f"{path.name}.corrupt-{time.time_ns()}")
        for suffix in _SIDE_FILES:
            there = path.with_name(path.name + suffix)
            if there.exists():
                there.rename(aside.with_name(aside.name + suffix))
        log.error("the database is corrupt and was set aside; starting with an empty one", extra={"kept": str(aside)})
        return _open(path, sync, migrations)


def _open(path: Path, sync: str, migrations: Migrations) -> sqlite3.Connection:
    path.touch(mode=0o600)  # what was asked is nobody else's to read; SQLite gives its side files the same mode
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=64)
    try:
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # first: it counts only before anything is in the file
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        connection.execute(f"PRAGMA synchronous={sync}")
        connection.execute("PRAGMA secure_delete=ON")  # what is erased is overwritten, so that it is gone from the file
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA busy_timeout=5000")
        if connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise sqlite3.DatabaseError("quick_check failed")
        expected = {"NORMAL": 1, "FULL": 2}[sync]
        if mode != "wal" or connection.execute("PRAGMA synchronous").fetchone()[0] != expected:
            raise StoreFailed(f"{path}: SQLite did not take its settings (journal mode {mode}).")
        migrations.apply(sqlite_utils.Database(connection))
    except BaseException:
        connection.close()
        raise
    return connection
