"""One thread, one transaction a burst, results after the commit, corrupt files set aside."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node.errors import NotFound, SettingsError, StoreFailed
from node.store import streams as _streams  # noqa: F401  # its tables are part of the schema
from node.store.db import Database


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = Database(tmp_path / "node.db")
    await opened.open()
    yield opened
    await opened.close()


async def test_jobs_run_and_their_results_come_after_the_commit(database: Database) -> None:
    await database.run(lambda db: db.execute("CREATE TABLE t (n)").rowcount)
    await asyncio.gather(
        *(database.run(lambda db, n=n: db.execute("INSERT INTO t VALUES (?)", (n,)).rowcount) for n in range(20))
    )
    with sqlite3.connect(database.path) as other:  # another connection sees only what was committed
        assert other.execute("SELECT COUNT(*), SUM(n) FROM t").fetchone() == (20, 190)
    other.close()


async def test_a_job_that_fails_harms_no_other(database: Database) -> None:
    await database.run(lambda db: db.execute("CREATE TABLE t (n UNIQUE)").rowcount)

    def refused(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO t VALUES (99)")
        raise NotFound("no")

    insert = "INSERT INTO t VALUES (1)"
    results = await asyncio.gather(
        database.run(lambda db: db.execute(insert).rowcount),
        database.run(refused),
        database.run(lambda db: db.execute(insert).rowcount),
        database.run(lambda db: db.execute("INSERT INTO t VALUES (2)").rowcount),
        return_exceptions=True,
    )
    assert isinstance(results[1], NotFound)
    assert isinstance(results[2], StoreFailed)
    assert await database.run(lambda db: db.execute("SELECT n FROM t ORDER BY n").fetchall()) == [(1,), (2,)]


@pytest.mark.parametrize(("sync", "number"), [("NORMAL", 1), ("FULL", 2)])
async def test_the_promised_settings_are_really_set(tmp_path: Path, sync: str, number: int) -> None:
    database = Database(tmp_path / "node.db", sync)  # type: ignore[arg-type]
    await database.open()
    assert await database.run(lambda db: db.execute("PRAGMA synchronous").fetchone()[0]) == number
    assert await database.run(lambda db: db.execute("PRAGMA journal_mode").fetchone()[0]) == "wal"
    await database.close()


@pytest.mark.parametrize("damage", [b"this is no database at all" * 100, None])
async def test_a_corrupt_file_is_set_aside_loudly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes | None
) -> None:
    path = tmp_path / "node.db"
    if damage is None:
        database = Database(path)
        await database.open()
        await database.close()
        damage = path.read_bytes()[:4096] + b"\xff" * 8192
    path.write_bytes(damage)
    database = Database(path)
    await database.open()
    assert await database.run(lambda db: db.execute("SELECT COUNT(*) FROM streams").fetchone()[0]) == 0
    await database.close()
    assert any(".corrupt-" in name for name in os.listdir(tmp_path))
    assert "set aside" in caplog.text


async def test_two_nodes_do_not_share_a_file(database: Database) -> None:
    with pytest.raises(SettingsError, match="Another node") as error:
        await Database(database.path).open()
    assert "streams.database" in (error.value.hint or "")


async def test_what_waits_is_done_before_closing(tmp_path: Path) -> None:
    database = Database(tmp_path / "node.db")
    await database.open()
    await database.run(lambda db: db.execute("CREATE TABLE t (n)").rowcount)
    done: list[object] = []
    for n in range(50):
        database.post(lambda db, n=n: db.execute("INSERT INTO t VALUES (?)", (n,)), lambda _, error: done.append(error))
    await database.close()
    await asyncio.sleep(0)
    assert done == [None] * 50
    with pytest.raises(StoreFailed):
        database.post(lambda db: None, lambda *_: None)


async def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SettingsError, match="Cannot write"):
        await Database(tmp_path / "file" / "node.db").open()


async def test_what_is_kept_is_for_its_owner_only(database: Database) -> None:
    await database.run(lambda db: db.execute("CREATE TABLE t (n)").rowcount)
    for suffix in ("", "-wal", "-shm"):
        assert os.stat(f"{database.path}{suffix}").st_mode & 0o777 == 0o600, suffix


async def test_a_file_can_give_back_what_it_does_not_need(database: Database) -> None:
    assert await database.run(lambda db: db.execute("PRAGMA auto_vacuum").fetchone()[0]) == 2
