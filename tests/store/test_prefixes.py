"""Prefixes on disk: whole, by model, kept on their terms only, and gone from the file once erased."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node.store.db import Database
from node.store.prefixes import PrefixRow, PrefixStore

TERMS = "3 sessions of a tenant"


def row(id: int, parent: int = 0, edge: bytes = b"abcd", last: float = 100.0) -> PrefixRow:
    return PrefixRow(id, parent, "t", edge, 1.5, 2.5, last, b"h" * 96)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = Database(tmp_path / "node.db")
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def store(database: Database) -> PrefixStore:
    made = PrefixStore(database, "model-a")
    assert await made.load(TERMS, 50.0, 1000.0) == (50.0, [])
    return made


async def test_rows_come_back_as_they_were(store: PrefixStore) -> None:
    await store.save([row(1), row(2, parent=1)], [])
    assert await store.load(TERMS, 200.0, 1000.0) == (50.0, [row(1), row(2, parent=1)])


async def test_rows_are_replaced_and_erased(store: PrefixStore) -> None:
    await store.save([row(1), row(2)], [])
    await store.save([row(1, edge=b"wxyz")], [2, 77])
    _, rows = await store.load(TERMS, 200.0, 1000.0)
    assert rows == [row(1, edge=b"wxyz")]


async def test_what_is_too_old_is_erased(store: PrefixStore) -> None:
    await store.save([row(1, last=100.0), row(2, last=900.0)], [])
    _, rows = await store.load(TERMS, 1500.0, 1000.0)
    assert [found.id for found in rows] == [2]


async def test_models_do_not_read_each_others_rows(database: Database, store: PrefixStore) -> None:
    await store.save([row(1)], [])
    other = PrefixStore(database, "model-b")
    assert await other.load(TERMS, 200.0, 1000.0) == (200.0, [])
    await other.save([row(1, edge=b"wxyz")], [])
    assert (await store.load(TERMS, 200.0, 1000.0))[1] == [row(1)]


async def test_what_was_kept_on_other_terms_is_erased(store: PrefixStore) -> None:
    await store.save([row(1)], [])
    assert await store.load("5 sessions of a tenant", 200.0, 1000.0) == (200.0, [])
    assert await store.load(TERMS, 300.0, 1000.0) == (300.0, [])


async def test_forgotten_text_is_in_no_file(tmp_path: Path, database: Database, store: PrefixStore) -> None:
    secret = b"what somebody asked in confidence" * 40
    await store.save([row(number, edge=secret) for number in range(1, 50)], [])
    await store.save([row(number, edge=secret[::-1]) for number in range(1, 20)], [])
    assert all(_in_a_file(tmp_path, text) for text in (b"in confidence", b"in confidence"[::-1]))
    await store.forget(400.0)
    assert not any(_in_a_file(tmp_path, text) for text in (b"in confidence", b"in confidence"[::-1]))
    assert await store.load(TERMS, 500.0, 1000.0) == (400.0, [])


async def test_what_is_saved_after_forgetting_stays(store: PrefixStore) -> None:
    await store.save([row(1)], [])
    await store.forget(400.0)
    await store.save([row(1, edge=b"wxyz")], [])
    assert (await store.load(TERMS, 500.0, 1000.0))[1] == [row(1, edge=b"wxyz")]


async def test_forgetting_forgets_every_model(database: Database, store: PrefixStore) -> None:
    other = PrefixStore(database, "model-b")
    await other.load(TERMS, 50.0, 1000.0)
    await other.save([row(1)], [])
    await store.forget(400.0)
    assert (await other.load(TERMS, 500.0, 1000.0))[1] == []


def _in_a_file(folder: Path, text: bytes) -> bool:
    return any(text in path.read_bytes() for path in folder.iterdir())
