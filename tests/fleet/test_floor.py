"""What was seen is never gone back behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node.fleet.floor import Floor, FloorStore
from node.store.db import Database


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FloorStore]:
    database = Database(tmp_path / "fleet.db", "FULL")
    await database.open()
    yield FloorStore(database)
    await database.close()


async def test_nothing_was_seen(store: FloorStore) -> None:
    assert await store.load() == Floor()


async def test_it_only_rises(store: FloorStore) -> None:
    await store.lift({"root": 2, "timestamp": 9}, 100.0)
    await store.lift({"root": 3, "timestamp": 4}, 50.0)
    assert await store.load() == Floor({"root": 3, "timestamp": 9}, 100.0, 0)
    await asyncio.gather(*(store.lift({"root": number}, float(number)) for number in range(20)))
    assert await store.load() == Floor({"root": 19, "timestamp": 9}, 100.0, 0)


async def test_only_a_newer_reset_lets_the_time_fall(store: FloorStore) -> None:
    await store.lift({}, 1000.0)
    await store.reset_time(2, 300.0)
    assert (await store.load()).time == 300.0
    await store.lift({}, 400.0)
    for revision in (2, 1):
        await store.reset_time(revision, 10.0)
    assert await store.load() == Floor({}, 400.0, 2)
