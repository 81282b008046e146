"""Generations on disk: whole, owned, bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node.errors import Forbidden, Gone, NotFound
from node.generation import Entry, Failed, Finished, Logprob, Request, Sampling, Token
from node.store.db import Database
from node.store.streams import StoredStream, StreamStore

REQUEST = Request("r1", (1, 2, 3), 9, sampling=Sampling(seed=7, logit_bias=((1, 2.0),)), stop=("x",))
ENTRIES = [
    Entry("a", Token(5, b"a")),
    Entry("é", Token(6, "é".encode(), Logprob(-0.5, ((6, -0.5),)))),
    Entry("t", None),
]


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = Database(tmp_path / "node.db")
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def store(database: Database) -> StreamStore:
    return StreamStore(database, max_bytes=1 << 20, max_age_s=1000)


def stream(id: str = "r1", created: float | None = None) -> StoredStream:
    request = Request(id, REQUEST.prompt, REQUEST.max_tokens, sampling=REQUEST.sampling, stop=REQUEST.stop)
    return StoredStream(b"me", request, b"origin", time.time() if created is None else created)


async def record(store: StreamStore, id: str, first: int, entries: list[Entry], end: Finished | Failed | None) -> None:
    done = asyncio.get_running_loop().create_future()
    store.record(id, first, entries, end, lambda error: done.set_result(error))
    assert await done is None


async def test_a_generation_comes_back_as_it_was(store: StreamStore) -> None:
    await store.open(stream())
    await record(store, "r1", 0, ENTRIES[:1], None)
    await record(store, "r1", 1, ENTRIES[1:], None)
    loaded = await store.load("r1", b"me")
    assert loaded.request == stream().request
    assert list(loaded.entries) == ENTRIES
    assert loaded.end is None
    end = Finished("stop", 3, 2)
    await record(store, "r1", 3, [], end)
    loaded = await store.load("r1", b"me")
    assert list(loaded.entries) == ENTRIES
    assert loaded.end == end
    assert loaded.origin == b"origin"


async def test_many_writers_at_once_are_all_stored(store: StreamStore, database: Database) -> None:
    for id in "abc":
        await store.open(stream(id))
    before = await database.run(lambda db: db.total_changes)
    await asyncio.gather(*(record(store, id, 0, ENTRIES, None) for id in "abc"))
    assert await database.run(lambda db: db.total_changes) == before + 3
    for id in "abc":
        assert list((await store.load(id, b"me")).entries) == ENTRIES


async def test_unfinished_ones_are_found_oldest_first(store: StreamStore) -> None:
    await store.open(stream("young", created=time.time()))
    await store.open(stream("old", created=time.time() - 100))
    await store.open(stream("done"))
    await record(store, "done", 0, ENTRIES, Finished("stop", 3, 2))
    await record(store, "old", 0, ENTRIES[:1], None)
    assert [found.request.id for found in await store.unfinished()] == ["old", "young"]


async def test_others_unknown_and_evicted_are_told_apart(store: StreamStore) -> None:
    await store.open(stream("mine"))
    await store.open(stream("aged"))
    await record(store, "aged", 0, ENTRIES, Finished("stop", 3, 2))
    await store._database.run(lambda db: db.execute("UPDATE streams SET ended = 1 WHERE id = 'aged'").rowcount)
    assert await store.prune() == 1
    with pytest.raises(Forbidden):
        await store.load("mine", b"you")
    with pytest.raises(NotFound):
        await store.load("never", b"me")
    with pytest.raises(Gone):
        await store.load("aged", b"me")


async def test_bytes_are_bounded_and_the_oldest_ended_goes_first(database: Database) -> None:
    store = StreamStore(database, max_bytes=20_000, max_age_s=1000)
    big = [Entry("x" * 3000, Token(n, b"x" * 3000)) for n in range(1)]
    for number in range(6):
        await store.open(stream(str(number)))
        await record(store, str(number), 0, big, Finished("stop", 3, 1))
    await store.open(stream("running"))
    assert await store.prune() >= 2
    with pytest.raises(Gone):
        await store.load("0", b"me")
    assert (await store.load("5", b"me")).entries
    assert (await store.load("running", b"me")).end is None
    assert await store.prune() == 0


async def test_a_failed_end_stays_failed(store: StreamStore) -> None:
    from node.errors import EngineFailed

    await store.open(stream())
    await record(store, "r1", 0, [], Failed(EngineFailed("secret words of that time")))
    end = (await store.load("r1", b"me")).end
    assert isinstance(end, Failed)
    assert "secret" not in end.error.message


async def test_a_store_that_fails_tells_the_session_and_counts(store: StreamStore) -> None:
    done = asyncio.get_running_loop().create_future()
    store.record("nobody", 0, ENTRIES, None, lambda error: done.set_result(error))
    assert isinstance(await done, Exception), "entries of an unknown stream break its reference"
    assert store.failures == 1


async def test_a_full_disk_is_told_once_a_stream_not_once_a_token(
    database: Database, store: StreamStore, caplog: pytest.LogCaptureFixture
) -> None:
    await store.open(stream())
    await database.run(
        lambda db: db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0]}").fetchone()
    )
    large = [Entry("x" * 20_000, None)]

    async def write(id: str, end: Finished | None = None) -> None:
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        store.record(id, 0, large, end, done.set_result)
        assert "full" in str(await done)

    for number in range(20):
        await write("r1", Finished("stop", 3, 2) if number > 15 else None)  # an end is tried again for minutes
    assert store.failures == 20
    assert caplog.text.count("entries could not be stored") == 1
    assert caplog.text.count("a transaction failed") <= 1


async def test_what_was_told_is_forgotten_when_it_works_again_and_where_it_is_too_much(
    store: StreamStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.store.streams._MOST_TOLD", 2)

    async def fail(id: str) -> int:
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        store.record(id, 0, ENTRIES, None, done.set_result)
        assert await done is not None
        return caplog.text.count("entries could not be stored")

    assert [await fail(id) for id in ("a", "b", "a")] == [1, 2, 2]
    await store.open(stream("a"))
    await record(store, "a", 0, ENTRIES, None)
    assert store._failing.keys() == {"b"}
    assert [await fail(id) for id in ("c", "d", "b")] == [3, 4, 5]
    assert len(store._failing) == 2


async def test_one_streams_fault_is_not_anothers(store: StreamStore) -> None:
    await store.open(stream("good"))
    results = await asyncio.gather(
        record(store, "good", 0, ENTRIES, None), record(store, "nobody", 0, ENTRIES, None), return_exceptions=True
    )
    assert results[0] is None
    assert isinstance(results[1], AssertionError)
    assert list((await store.load("good", b"me")).entries) == ENTRIES


async def test_a_running_generation_is_never_evicted_by_age(store: StreamStore) -> None:
    await store.open(stream("running", created=time.time() - 10_000))
    assert await store.prune() == 0
    assert (await store.load("running", b"me")).end is None


async def test_a_gap_is_never_passed_over(store: StreamStore) -> None:
    """What a full disk may leave: a group is missing, and the ones after it are there."""
    await store.open(stream())
    await record(store, "r1", 0, ENTRIES[:1], None)
    await record(store, "r1", 2, ENTRIES[2:], None)
    assert list((await store.load("r1", b"me")).entries) == ENTRIES[:1]
    (found,) = await store.unfinished()
    assert list(found.entries) == ENTRIES[:1], "the next life goes on before the gap"
    await record(store, "r1", 1, ENTRIES[1:2], None)
    assert list((await store.load("r1", b"me")).entries) == ENTRIES[:2], "and what lay beyond is forgotten"


async def test_a_group_written_again_may_overlap(store: StreamStore) -> None:
    await store.open(stream())
    await record(store, "r1", 1, ENTRIES[1:2], None)
    await record(store, "r1", 0, ENTRIES, Finished("stop", 3, 2))
    loaded = await store.load("r1", b"me")
    assert list(loaded.entries) == ENTRIES
    assert loaded.end == Finished("stop", 3, 2)


@pytest.mark.parametrize("damage", ["UPDATE streams SET request = x'ff00'", "UPDATE entries SET data = x'c1ff'"])
async def test_a_row_that_cannot_be_read_harms_no_other(store: StreamStore, damage: str) -> None:
    for id in ("bad", "good"):
        await store.open(stream(id))
        await record(store, id, 0, ENTRIES, None)
    column = "id" if "streams" in damage else "stream"
    await store._database.run(lambda db: db.execute(f"{damage} WHERE {column} = 'bad'").rowcount)
    with pytest.raises(Gone):
        await store.load("bad", b"me")
    assert [found.request.id for found in await store.unfinished()] == ["good"]
    assert [found.request.id for found in await store.unfinished()] == ["good"], "the bad one was ended"
