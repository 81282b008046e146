"""Deferred requests on disk: kept before they are acknowledged, answered once, owned, bounded."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from node.errors import Forbidden, Gone, InvalidRequest, NotFound, OutboxFull, Overloaded
from node.store.db import Database
from node.store.later import CALLBACK, LaterStore, Wanted
from node.store.outbox import OUTBOX, ROW_BYTES, Outbox
from tests.store.test_outbox import Clock

WANTED = Wanted(b"me", "user", "/v1/chat/completions", "", b'{"messages":[]}')


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = Database(tmp_path / "outbox.db", "FULL", OUTBOX)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def outbox(database: Database, clock: Clock) -> Outbox:
    return Outbox(database, 1 << 20, 1000.0, lambda: clock.wall, lambda: clock.steady)


@pytest.fixture
def store(database: Database, outbox: Outbox) -> LaterStore:
    return LaterStore(database, outbox, most_waiting=20)


async def test_a_request_is_kept_run_and_answered_once(store: LaterStore, clock: Clock) -> None:
    kept = await store.keep(replace(WANTED, level="standard"))
    assert kept.id.startswith("later-")
    assert (kept.owner, kept.user, kept.request, kept.level) == (b"me", "user", WANTED.request, "standard")
    assert (kept.created, kept.expires, kept.status) == (clock.wall, clock.wall + 1000, 0)
    due = await store.next(frozenset())
    assert due == kept
    assert await store.next(frozenset({kept.id})) is None
    assert await store.finish(kept, 200, b'{"x":1}')
    assert not await store.finish(kept, 200, b'{"x":2}')
    found = await store.find(kept.id, b"me")
    assert (found.status, found.answer, found.request) == (200, b'{"x":1}', b"")
    assert await store.next(frozenset()) is None
    assert (await store.look())["answered"] == 1


async def test_the_urgent_first_then_the_oldest(store: LaterStore) -> None:
    ids = {}
    for name, level in (("old", ""), ("plain", "standard"), ("new", ""), ("urgent", "critical")):
        ids[(await store.keep(replace(WANTED, level=level))).id] = name
    order: list[str] = []
    while (due := await store.next(frozenset())) is not None:
        order.append(ids[due.id])
        await store.finish(due, 200, b"{}")
    assert order == ["urgent", "plain", "old", "new"]


async def test_its_callers_word_on_the_cloud_is_kept(store: LaterStore) -> None:
    kept = [await store.keep(replace(WANTED, cloud=word)) for word in ("never", "allow", "")]
    assert [(await store.find(one.id, b"me")).cloud for one in kept] == ["never", "allow", ""]


async def test_one_from_before_that_was_asked_stays_here(tmp_path: Path) -> None:
    """Nobody knows any more what its caller said."""
    file = tmp_path / "old.db"
    database = Database(file, "FULL", OUTBOX)
    await database.open()
    await LaterStore(database, Outbox(database, 1 << 20, 1000.0), 9).keep(replace(WANTED, cloud="allow"))
    await database.close()
    with sqlite3.connect(file) as db:
        db.execute("ALTER TABLE later DROP COLUMN cloud")
        db.execute("DELETE FROM _sqlite_migrations WHERE name = 'm002_cloud'")
    db.close()
    database = Database(file, "FULL", OUTBOX)
    await database.open()
    due = await LaterStore(database, Outbox(database, 1 << 20, 1000.0), 9).next(frozenset())
    await database.close()
    assert due is not None
    assert due.cloud == "never"


async def test_an_idempotency_key_finds_what_was_kept(store: LaterStore) -> None:
    wanted = replace(WANTED, key=b"k", content=b"c")
    first, second = await asyncio.gather(store.keep(wanted), store.keep(wanted))
    assert first.id == second.id
    assert await store.known(b"k", b"c") == first
    assert await store.known(b"other", b"c") is None
    with pytest.raises(InvalidRequest, match="another request"):
        await store.keep(replace(wanted, content=b"different"))
    assert (await store.look())["waiting"] == 1


async def test_only_its_owner_gets_it(store: LaterStore) -> None:
    kept = await store.keep(WANTED)
    with pytest.raises(Forbidden):
        await store.find(kept.id, b"you")
    with pytest.raises(Forbidden):
        await store.cancel(kept.id, b"you")
    with pytest.raises(NotFound):
        await store.find("later-0", b"me")


async def test_what_is_cancelled_is_gone_with_its_answer_and_its_callback(store: LaterStore, outbox: Outbox) -> None:
    waits = await store.keep(WANTED)
    done = await store.keep(replace(WANTED, callback="https://a.example/x"))
    await store.finish(done, 200, b"{}")
    assert len(await outbox.take(1 << 20, stream=CALLBACK)) == 1
    for one in (waits, done):
        await store.cancel(one.id, b"me")
        with pytest.raises(Gone):
            await store.find(one.id, b"me")
    assert await outbox.take(1 << 20) == []
    assert not await store.finish(waits, 200, b"{}")
    assert await store.address_of(done.id) == ""


async def test_the_callback_is_put_with_the_answer(store: LaterStore, outbox: Outbox) -> None:
    done = await store.keep(replace(WANTED, callback="https://a.example/x"))
    await store.finish(done, 429, b'{"error":{}}')
    (item,) = await outbox.take(1 << 20, stream=CALLBACK)
    assert msgspec.json.decode(item.body) == {"id": done.id, "status": 429, "response": {"error": {}}}
    assert item.key == done.id
    assert await store.address_of(done.id) == "https://a.example/x"


async def test_waiting_and_answers_expire(store: LaterStore, outbox: Outbox, clock: Clock) -> None:
    short = await store.keep(replace(WANTED, ttl_s=10.0))
    long = await store.keep(replace(WANTED, ttl_s=1e9))
    clock.pass_(11)
    assert (await store.next(frozenset())).id == long.id  # type: ignore[union-attr]
    await outbox.sweep()
    with pytest.raises(Gone):
        await store.find(short.id, b"me")
    await store.finish(long, 200, b"{}")
    clock.pass_(995)
    await outbox.sweep()
    assert (await store.find(long.id, b"me")).status == 200  # an answer is kept as long as anything, from then on
    clock.pass_(10)
    await outbox.sweep()
    with pytest.raises(Gone):
        await store.find(long.id, b"me")


async def test_postponed_ones_wait_their_time(store: LaterStore, clock: Clock) -> None:
    kept = await store.keep(WANTED)
    await store.postpone(kept.id, 30.0, failed=True)
    assert await store.next(frozenset()) is None
    clock.pass_(31)
    due = await store.next(frozenset())
    assert due is not None
    assert due.attempts == 1


async def test_not_more_wait_than_may(store: LaterStore) -> None:
    for _ in range(20):
        await store.keep(WANTED)
    with pytest.raises(Overloaded, match="20 requests wait") as refusal:
        await store.keep(WANTED)
    assert refusal.value.retry_after
    depth = await store.look()
    assert (depth["waiting"], depth["answers"]) == (20, 0)


async def test_accepted_requests_are_not_dropped_and_fetched_answers_are(database: Database, clock: Clock) -> None:
    outbox = Outbox(database, 10_000, 1000.0, lambda: clock.wall, lambda: clock.steady)
    store = LaterStore(database, outbox, 100)
    big = replace(WANTED, request=b"x" * (2400 - ROW_BYTES))
    kept = [await store.keep(big) for _ in range(4)]
    with pytest.raises(OutboxFull):
        await store.keep(big)
    await outbox.put("s", b"1" * 50, priority="telemetry")
    await store.finish(kept[0], 200, b"y" * 5000)  # fits whatever is there: it was promised
    with pytest.raises(OutboxFull):
        await store.keep(big)
    await store.fetched(kept[0].id)
    newest = await store.keep(big)
    with pytest.raises(Gone):
        await store.find(kept[0].id, b"me")
    for one in (*kept[1:], newest):
        assert (await store.find(one.id, b"me")).status == 0


async def test_a_clock_that_is_set_moves_deferred_requests_along(
    store: LaterStore, outbox: Outbox, clock: Clock
) -> None:
    kept = await store.keep(WANTED)
    clock.wall += 1e8
    await outbox.sweep()
    assert (await store.find(kept.id, b"me")).expires == pytest.approx(clock.wall + 1000)


async def test_they_survive_the_process(tmp_path: Path, clock: Clock) -> None:
    ids = []
    for life in range(3):
        database = Database(tmp_path / "lives.db", "FULL", OUTBOX)
        await database.open()
        store = LaterStore(database, Outbox(database, 1 << 20, 1000.0, lambda: clock.wall), 20)
        assert (await store.look())["waiting"] == life
        ids.append((await store.keep(WANTED)).id)
        await database.close()
    assert len(set(ids)) == 3
