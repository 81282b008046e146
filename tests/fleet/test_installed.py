"""What is remembered of updates, in a database and in memory alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from node.fleet.directive import Rollout
from node.fleet.installed import InMemory, Installed, Ledger
from node.fleet.rollout import Update, step
from node.store.db import Database


def rollout(revision: int = 3, digest: str = "ab" * 32, name: str = "spring") -> Rollout:
    return Rollout(name=name, revision=revision, profile="kiosk", profile_sha256=digest, window=((1, 2),))


def begun(revision: int = 3) -> Update:
    return Update(rollout(revision), "fleet", began=5.0)


@pytest.fixture(params=["database", "memory"])
async def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ledger]:
    if request.param == "memory":
        yield InMemory()
        return
    database = Database(tmp_path / "fleet.db", "FULL")
    await database.open()
    yield Installed(database)
    await database.close()


async def test_an_update_comes_back_as_it_was(ledger: Ledger) -> None:
    assert (await ledger.load()).update is None
    update = replace(
        begun(), state="probation", steps=5, deaths=2, served_s=1.5, clean=True, reason="why", evidence={"ttft_s": "2"}
    )
    await ledger.write(update)
    assert (await ledger.load()).update == update


async def test_what_failed_is_denied_until_a_newer_revision(ledger: Ledger) -> None:
    await ledger.write(step(begun(), "refused"))
    memory = await ledger.load()
    assert memory.update is not None, "it is still to be reported"
    assert not memory.wants(rollout(3))
    assert not memory.wants(rollout(2))
    assert not memory.wants(rollout(3, name="summer")), "the same digest under another name"
    assert memory.wants(rollout(4))
    assert memory.wants(rollout(1, digest="cd" * 32, name="summer"))
    await ledger.write(step(step(begun(), "refused"), "reported"))
    memory = await ledger.load()
    assert memory.update is None
    assert not memory.wants(rollout(3))


async def test_what_was_done_is_not_done_again(ledger: Ledger) -> None:
    update = begun()
    for word in ("accepted", "fetched", "verified", "ready", "switched", "passed", "committed", "reported"):
        update = step(update, word)
        await ledger.write(update)
    memory = await ledger.load()
    assert not memory.wants(rollout(3))
    assert memory.denied == {}
    assert memory.wants(rollout(4))
    assert memory.wants(rollout(3, name="summer"))


async def test_revisions_never_go_back(ledger: Ledger) -> None:
    for revision in (9, 4):
        await ledger.write(step(begun(revision), "refused"))
    memory = await ledger.load()
    assert (memory.ended["spring"], memory.denied["ab" * 32]) == (9, 9)


async def test_it_survives_the_process(tmp_path: Path) -> None:
    for word in ("accepted", "fetched", "verified"):
        database = Database(tmp_path / "fleet.db", "FULL")
        await database.open()
        ledger = Installed(database)
        update = (await ledger.load()).update or begun()
        await ledger.write(step(update, word))
        await database.close()
    database = Database(tmp_path / "fleet.db", "FULL")
    await database.open()
    assert (await Installed(database).load()).update.state == "staged"  # type: ignore[union-attr]
    assert (await database.run(lambda db: db.execute("PRAGMA synchronous").fetchone()[0])) == 2
    await database.close()


async def test_a_row_of_another_version_is_forgotten(tmp_path: Path) -> None:
    database = Database(tmp_path / "fleet.db", "FULL")
    await database.open()
    await database.run(lambda db: db.execute("INSERT INTO updating VALUES (1, ?)", (b"\x81\xa1x\x01",)).rowcount)
    assert (await Installed(database).load()).update is None
    await database.close()
