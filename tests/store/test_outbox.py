"""What waits for the network: safe before it is acknowledged, bounded, in order, damaged by nothing unseen."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node.errors import OutboxFull, StoreFailed
from node.store.backlog import Priority
from node.store.db import Database
from node.store.outbox import OUTBOX, REMEMBERED, ROW_BYTES, Outbox


class Clock:
    """Wall and steady time, moved by hand."""

    def __init__(self) -> None:
        self.wall, self.steady = 1_700_000_000.0, 100.0

    def pass_(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = Database(tmp_path / "outbox.db", "FULL", OUTBOX, "outbox.database")
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def outbox(database: Database, clock: Clock) -> Outbox:
    return outbox_on(database, clock)


def outbox_on(database: Database, clock: Clock, most: int = 1 << 24) -> Outbox:
    return Outbox(database, most, 1000.0, lambda: clock.wall, lambda: clock.steady)


async def bodies(outbox: Outbox, most: int = 1 << 20) -> list[bytes]:
    return [item.body for item in await outbox.take(most)]


async def test_the_urgent_first_and_within_a_priority_in_order(outbox: Outbox) -> None:
    order: list[Priority] = ["log", "status", "telemetry", "alarm", "status", "log", "alarm"]
    for number, priority in enumerate(order):
        await outbox.put("s", b"%d" % number, priority=priority)
    assert await bodies(outbox) == [b"3", b"6", b"1", b"4", b"2", b"0", b"5"]


async def test_an_item_stays_until_it_is_delivered(outbox: Outbox, clock: Clock) -> None:
    id = await outbox.put("report", b"body" * 500, priority="status", key="k")
    (item,) = await outbox.take(1)
    assert (item.id, item.key, item.stream, item.priority, item.body) == (id, "k", "report", "status", b"body" * 500)
    assert (item.created, item.attempts) == (clock.wall, 0)
    await outbox.failed([id])
    (again,) = await outbox.take(1)
    assert again.attempts == 1
    await outbox.failed([id], 30.0)
    assert await outbox.take(1) == []
    clock.pass_(31)
    assert len(await outbox.take(1)) == 1
    await outbox.delivered([id])
    assert await outbox.take(1) == []
    depth = await outbox.look()
    assert (depth["waiting"], depth["used_bytes"], depth["delivered"], depth["oldest_s"]) == (0, 0, 1, None)


async def test_the_same_key_is_the_same_item(outbox: Outbox) -> None:
    first = await outbox.put("s", b"one", key="k")
    assert await outbox.put("s", b"two", key="k") == first
    assert await bodies(outbox) == [b"one"]
    assert await outbox.put("s", b"three") != await outbox.put("s", b"three")
    await outbox.withdraw("k")
    assert await bodies(outbox) == [b"three", b"three"]


async def test_batches_are_bounded_but_never_empty(outbox: Outbox) -> None:
    for number in range(10):
        await outbox.put("s", os.urandom(1000) + b"%d" % number)
    assert len(await outbox.take(3 * (1001 + ROW_BYTES))) == 3
    assert len(await outbox.take(1)) == 1


async def test_streams_can_be_taken_by_themselves(outbox: Outbox) -> None:
    for stream in ("a", "b", "a"):
        await outbox.put(stream, stream.encode())
    assert [item.stream for item in await outbox.take(1 << 20, stream="b")] == ["b"]
    assert [item.stream for item in await outbox.take(1 << 20, without=("b",))] == ["a", "a"]


async def fill(outbox: Outbox, priority: Priority, count: int) -> None:
    for number in range(count):
        await outbox.put("fill", os.urandom(1000 - ROW_BYTES - 4) + b"%4d" % number, priority=priority)


async def test_overflow_drops_the_lowest_and_oldest_first_and_says_so(
    database: Database, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = outbox_on(database, clock, most=10_000)
    await fill(outbox, "log", 3)
    await fill(outbox, "telemetry", 7)
    await outbox.put("s", os.urandom(1500), priority="status")
    left = [(item.priority, int(item.body[-4:])) for item in (await outbox.take(1 << 20))[1:]]
    assert left == [*(("telemetry", n) for n in range(7)), ("log", 2)]
    await outbox.put("s", os.urandom(1500), priority="telemetry")
    left = [(item.priority, int(item.body[-4:])) for item in (await outbox.take(1 << 20))[1:-1]]
    assert left == [("telemetry", n) for n in range(1, 7)]
    depth = await outbox.look()
    assert depth["dropped"] == 4
    assert depth["used_bytes"] <= 10_000
    assert "given up" in caplog.text


async def test_what_was_accepted_is_never_dropped_for_a_newcomer(database: Database, clock: Clock) -> None:
    outbox = outbox_on(database, clock, most=10_000)
    await fill(outbox, "status", 9)
    await fill(outbox, "telemetry", 1)
    before = await bodies(outbox)
    for priority in ("alarm", "status", "telemetry", "log"):
        with pytest.raises(OutboxFull, match="full") as refusal:
            await outbox.put("s", os.urandom(3000), priority=priority)  # type: ignore[arg-type]
        assert refusal.value.retry_after
        assert "outbox.max_bytes" in (refusal.value.hint or "")
    assert await bodies(outbox) == before
    assert (await outbox.look())["dropped"] == 0


async def test_a_log_line_displaces_no_figure(database: Database, clock: Clock) -> None:
    outbox = outbox_on(database, clock, most=10_000)
    await fill(outbox, "telemetry", 10)
    with pytest.raises(OutboxFull):
        await outbox.put("s", b"x" * 50, priority="log")
    assert len(await bodies(outbox)) == 10


async def test_what_is_too_old_goes_and_is_counted(outbox: Outbox, clock: Clock) -> None:
    await outbox.put("s", b"short", expires_s=10)
    await outbox.put("s", b"long", expires_s=1e9)
    clock.pass_(11)
    await outbox.sweep()
    assert await bodies(outbox) == [b"long"]
    assert outbox.depth["oldest_s"] == pytest.approx(11)
    clock.pass_(1000)
    await outbox.sweep()
    assert await bodies(outbox) == []
    assert outbox.depth["expired"] == 2


async def test_a_clock_that_is_set_expires_nothing(outbox: Outbox, clock: Clock) -> None:
    clock.wall = 0.0  # a machine without a clock, before it has heard the time
    fresh = Outbox(outbox._database, 1 << 20, 1000.0, lambda: clock.wall, lambda: clock.steady)
    await fresh.put("s", b"kept")
    clock.wall = 1_700_000_000.0
    await fresh.sweep()
    assert await bodies(fresh) == [b"kept"]
    clock.pass_(1001)
    await fresh.sweep()
    assert await bodies(fresh) == []


async def test_what_the_disk_changed_is_not_sent(outbox: Outbox, database: Database) -> None:
    await outbox.put("s", b"good")
    await outbox.put("s", b"bad" * 200)
    await outbox.put("s", b"better")
    await database.run(lambda db: db.execute("UPDATE outbox SET body = zeroblob(30) WHERE packed").rowcount)
    await database.run(lambda db: db.execute("UPDATE outbox SET body = x'00' WHERE seq = 1").rowcount)
    assert await bodies(outbox) == [b"better"]
    assert (await outbox.look())["damaged"] == 2


async def test_bodies_are_packed_where_it_pays(outbox: Outbox, database: Database) -> None:
    await outbox.put("s", b"the same again " * 200)
    await outbox.put("s", os.urandom(3000))
    sizes = await database.run(lambda db: db.execute("SELECT packed, LENGTH(body) FROM outbox ORDER BY seq").fetchall())
    assert sizes[0][0] == 1
    assert sizes[0][1] < 200
    assert sizes[1] == (0, 3000)
    with pytest.raises(OutboxFull):
        await outbox.put("s", bytes((16 << 20) + 1))


async def test_counts_and_the_node_s_name_outlive_the_process(tmp_path: Path, clock: Clock) -> None:
    names = []
    for _ in range(2):
        database = Database(tmp_path / "a.db", "FULL", OUTBOX)
        await database.open()
        outbox = outbox_on(database, clock)
        await outbox.delivered([await outbox.put("s", b"x")])
        names.append(await outbox.node_id())
        delivered = (await outbox.look())["delivered"]
        await database.close()
    assert delivered == 2
    assert names[0] == names[1]
    assert re.fullmatch("[0-9a-f]{16}", names[0])
    other = Database(tmp_path / "b.db", "FULL", OUTBOX)
    await other.open()
    assert await outbox_on(other, clock).node_id() != names[0]
    await other.close()


async def test_a_full_disk_refuses_and_loses_nothing(
    database: Database, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = outbox_on(database, clock, most=1 << 30)
    accepted = [await outbox.put("s", os.urandom(3000)) for _ in range(5)]

    def shrink(db: sqlite3.Connection) -> None:  # as a disk without room answers
        db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0] + 20}").fetchone()

    await database.run(shrink)
    refused = 0
    while not refused and len(accepted) < 100:
        try:
            accepted.append(await outbox.put("s", os.urandom(3000)))
        except StoreFailed as error:
            refused += "full" in error.message
    assert refused
    assert [item.id for item in await outbox.take(1 << 30)] == accepted
    await outbox.delivered(accepted[:3])
    assert await outbox.put("s", os.urandom(3000))  # there is room again


async def test_a_broken_file_is_set_aside(tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "outbox.db"
    path.write_bytes(b"SQLite format 3\0" + os.urandom(9000))
    database = Database(path, "FULL", OUTBOX)
    await database.open()
    await outbox_on(database, clock).put("s", b"x")
    await database.close()
    assert any(".corrupt-" in name for name in os.listdir(tmp_path))
    assert "set aside" in caplog.text


async def test_hurry_is_called_after_the_commit(outbox: Outbox, database: Database) -> None:
    seen: list[int] = []

    def look() -> None:
        with sqlite3.connect(database.path) as other:
            seen.append(other.execute("SELECT COUNT(*) FROM outbox").fetchone()[0])
        other.close()

    outbox.hurry = look
    for number in range(3):
        await outbox.put("s", b"%d" % number)
    assert seen == [1, 2, 3]


PUTS = """
import asyncio, os, sys
from pathlib import Path
from node.store.db import Database
from node.store.outbox import OUTBOX, Outbox

async def main():
    database = Database(Path(sys.argv[1]), "FULL", OUTBOX)
    await database.open()
    outbox = Outbox(database, 1 << 24, 1e6)
    for number in range(10):
        await outbox.put("s", b"body %d" % number)
        os.write(1, b"ack %d\\n" % number)
    await database.close()

asyncio.run(main())
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_every_acknowledgement_follows_an_fdatasync(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-e", "trace=fdatasync,fsync,write", "-o", str(trace)]
    command += [sys.executable, "-c", PUTS, str(tmp_path / "outbox.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    if "PTRACE" in done.stderr:
        pytest.skip("this process may not be traced")
    assert done.returncode == 0, done.stderr
    synced = acknowledged = 0
    for line in trace.read_text().splitlines():
        if re.search(r"(fdatasync|fsync)(\(| resumed).*= 0", line):
            synced += 1
        elif 'write(1, "ack' in line:
            acknowledged += 1
            assert synced, f"acknowledged without a sync: {line}"
            synced = 0
    assert acknowledged == 10


@pytest.mark.parametrize("level", [logging.DEBUG])
async def test_nothing_of_a_body_is_logged(outbox: Outbox, caplog: pytest.LogCaptureFixture, level: int) -> None:
    with caplog.at_level(level):
        await outbox.put("s", b"canary-in-a-body")
        await outbox.failed([item.id for item in await outbox.take(1)])
        await outbox.sweep()
    assert "canary" not in caplog.text


async def test_the_file_gives_back_what_it_does_not_need(outbox: Outbox, database: Database) -> None:
    ids = [await outbox.put("s", os.urandom(500_000)) for _ in range(10)]

    def pages(db: sqlite3.Connection) -> int:
        return int(db.execute("PRAGMA page_count").fetchone()[0])

    most = await database.run(pages)
    await outbox.delivered(ids)
    await outbox.sweep()
    assert await database.run(pages) < most / 10


async def test_not_every_id_that_is_gone_is_remembered(outbox: Outbox, database: Database) -> None:
    def fill(db: sqlite3.Connection) -> None:
        db.executemany("INSERT INTO later_gone (id) VALUES (?)", [(str(n),) for n in range(REMEMBERED + 500)])

    await database.run(fill)
    await outbox.sweep()
    count = "SELECT COUNT(*), MIN(CAST(id AS INTEGER)) FROM later_gone"
    assert await database.run(lambda db: db.execute(count).fetchone()) == (REMEMBERED, 500)
