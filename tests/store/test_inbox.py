"""What a hub has received: once, in order, safe, bounded per node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node.errors import Forbidden
from node.store.db import Database
from node.store.inbox import INBOX, MESH_USER, Inbox, Received


class Clock:
    now = 1_700_000_000.0


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = Database(tmp_path / "hub.db", "FULL", INBOX)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def inbox(database: Database, clock: Clock) -> Inbox:
    return Inbox(database, node_bytes=10_000, max_age_s=1000.0, clock=lambda: clock.now)


def item(
    number: int, *, node: str = "n1", stream: str = "report", key: str = "", body: bytes = b"", **more: str
) -> Received:
    return Received(node, f"id{number}", key or f"key{number}", stream, more.get("priority", "status"), 5.0, body)


async def test_items_are_kept_once_and_in_order(inbox: Inbox, clock: Clock) -> None:
    assert await inbox.take("n1", "u", [item(1, body=b"a"), item(2, body=b"b")]) == 2
    assert await inbox.take("n1", "u", [item(2, body=b"b"), item(3, body=b"c")]) == 1
    assert await inbox.take("n1", "u", [item(9, key="key3", body=b"c again, under another id")]) == 0
    read = await inbox.read("report")
    assert [one.body for _, one in read] == [b"a", b"b", b"c"]
    assert [one.at for _, one in read] == [clock.now] * 3
    assert [one.body for _, one in await inbox.read("report", after=read[0][0], most=1)] == [b"b"]
    (node,) = await inbox.nodes()
    assert (node["id"], node["received"], node["again"]) == ("n1", 3, 2)


async def test_the_same_ids_of_other_nodes_are_other_items(inbox: Inbox) -> None:
    assert await inbox.take("n1", "u", [item(1)]) == 1
    assert await inbox.take("n2", "u", [item(1, node="n2")]) == 1


async def test_a_node_belongs_to_its_key(inbox: Inbox) -> None:
    await inbox.take("n1", "alice", [item(1)])
    with pytest.raises(Forbidden, match="another API key"):
        await inbox.take("n1", "mallory", [item(2)])
    assert len(await inbox.read("report")) == 1


async def test_a_node_that_proves_who_it_is_takes_back_its_name(inbox: Inbox) -> None:
    """Else whoever has a key could name itself like a neighbour first, and keep it from ever delivering."""
    await inbox.take("n1", "mallory", [item(1)])
    await inbox.take("n1", f"{MESH_USER}n1", [item(2)])
    for foreign in ("mallory", f"{MESH_USER}n2"):
        with pytest.raises(Forbidden, match="another API key"):
            await inbox.take("n1", foreign, [item(3)])
    assert len(await inbox.read("report")) == 2


async def test_age_is_always_told(inbox: Inbox, clock: Clock) -> None:
    await inbox.take("n1", "u", [item(1, stream="node", body=b"old"), item(2, stream="node", body=b"new")])
    clock.now += 100
    await inbox.take("n2", "u", [item(1, node="n2")])
    clock.now += 7200
    rows = await inbox.nodes()
    assert [(row["id"], row["seen_s"], row["known_s"], row["record"]) for row in rows] == [
        ("n2", 7200.0, 7200.0, None),
        ("n1", 7300.0, 7300.0, b"new"),
    ]
    assert inbox.seen == rows


async def test_a_node_fills_only_its_own_place_and_figures_go_first(inbox: Inbox) -> None:
    await inbox.take("n1", "u", [item(0, body=b"r" * 1000)])
    for number in range(1, 20):
        await inbox.take("n1", "u", [item(number, stream="node", priority="telemetry", body=b"t" * 1000)])
    await inbox.take("n2", "u", [item(1, node="n2", body=b"x" * 1000)])
    assert len(await inbox.read("report")) == 2
    kept = await inbox.read("node")
    assert 5 <= len(kept) <= 9
    assert kept[-1][1].id == "id19"
    assert await inbox.take("n1", "u", [item(1, stream="node", body=b"t" * 1000)]) == 0  # still known, though gone


async def test_the_old_goes_but_the_node_stays_known(inbox: Inbox, clock: Clock) -> None:
    await inbox.take("n1", "u", [item(1)])
    clock.now += 1001
    await inbox.sweep()
    assert await inbox.read("report") == []
    assert [row["id"] for row in inbox.seen] == ["n1"]
