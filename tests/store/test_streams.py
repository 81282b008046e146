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


async def test_writers_of_one_turn_share_a_transaction(store: StreamStore, database: Database) -> None:
    for id in "abc":
        await store.open(stream(id))
    posted = []
    post = database.post
    database.post = lambda job, done: (posted.append(job), post(job, done))[1]  # type: ignore[method-assign]
    await asyncio.gather(*(record(store, id, 0, ENTRIES, None) for id in "abc"))
    assert len(posted) == 1
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
    await store.open(stream("aged", created=time.time() - 2000))
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
