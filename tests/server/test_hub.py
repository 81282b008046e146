"""The hub's side: safe before it says so, never twice, and who was heard of when."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest

from node.mesh import parcel
from node.store.outbox import Item
from tests.support.deferring import KEYS, Deferring, deferring
from tests.support.hubs import emptied, until
from tests.support.service import scripted


def items(count: int, start: int = 0, stream: str = "report") -> list[Item]:
    return [Item(f"id{n}", f"key{n}", stream, "status", 1.0, 0, b"%d" % n) for n in range(start, start + count)]


async def deliver(node: Deferring, body: bytes, key: str = "") -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with node.session.post(node.url + parcel.PATH, data=io.BytesIO(body), headers=headers) as response:
        return response.status, await response.json()


async def test_what_is_acknowledged_is_kept_once(tmp_path: Path) -> None:
    service, _ = scripted()
    async with deferring(service, tmp_path, hub_role="hub") as node:
        assert await deliver(node, parcel.pack("n1", items(3))) == (200, {"accepted": ["id0", "id1", "id2"]})
        assert await deliver(node, parcel.pack("n1", items(3, 1))) == (200, {"accepted": ["id1", "id2", "id3"]})
    async with deferring(service, tmp_path, hub_role="hub") as node:  # and after a restart
        assert (await deliver(node, parcel.pack("n1", items(4))))[0] == 200
        assert node.post.inbox is not None
        assert [one.body for _, one in await node.post.inbox.read("report")] == [b"0", b"1", b"2", b"3"]
        _, listed, _ = await node.send("GET", "/v1/hub/nodes")
        (row,) = listed["data"]
        assert (row["id"], row["received"], row["again"]) == ("n1", 4, 6)
        assert row["seen_s"] < 60
        await until(lambda: "n1" in node.post.status()["fleet"]["nodes"])


async def test_a_node_is_no_hub_unless_it_is_told_to(tmp_path: Path) -> None:
    service, _ = scripted()
    async with deferring(service, tmp_path) as node:
        status, body = await deliver(node, parcel.pack("n1", items(1)))
        assert status == 404
        assert "--role hub" in body["error"]["message"]
        assert (await node.send("GET", "/v1/hub/nodes"))[0] == 404


async def test_keys_are_asked_for_and_nodes_belong_to_them(tmp_path: Path) -> None:
    service, _ = scripted()
    async with deferring(service, tmp_path, hub_role="hub", server_api_keys=",".join(KEYS)) as node:
        body = parcel.pack("n1", items(1))
        assert (await deliver(node, body))[0] == 401
        assert (await deliver(node, body, "wrong-key-of-16-letters"))[0] == 401
        assert (await deliver(node, body, KEYS[0]))[0] == 200
        assert (await deliver(node, body, KEYS[1]))[0] == 403
        assert (await node.send("GET", "/v1/hub/nodes"))[0] == 401


@pytest.mark.parametrize("raw", [b"", b"{}", os.urandom(2000), parcel.pack("n1", items(2))[:-3]])
async def test_what_is_no_parcel_is_refused_and_leaves_nothing(tmp_path: Path, raw: bytes) -> None:
    service, _ = scripted()
    async with deferring(service, tmp_path, hub_role="hub") as node:
        status, body = await deliver(node, raw)
        assert (status, body["error"]["type"]) == (400, "invalid_request_error")
        assert (await node.send("GET", "/v1/hub/nodes"))[1]["data"] == []
        assert (await deliver(node, bytes(parcel.MOST_PACKED + 1)))[0] == 413


async def test_a_real_outbox_reaches_a_real_hub(tmp_path: Path) -> None:
    service, _ = scripted()
    (tmp_path / "hub").mkdir()  # a test may
    (tmp_path / "node").mkdir()
    async with deferring(service, tmp_path / "hub", hub_role="hub", server_api_keys=KEYS[0]) as central:
        flags = {"hub_url": central.url, "hub_key": KEYS[0], "hub_batch_bytes": 4096}
        async with deferring(service, tmp_path / "node", **flags) as node:
            assert node.post.outbox is not None
            for number in range(300):
                await node.post.outbox.put("report", b"report %d" % number)
            await emptied(node.post.outbox)
        assert central.post.inbox is not None
        read = await central.post.inbox.read("report")
        assert [one.body for _, one in read] == [b"report %d" % n for n in range(300)]
        assert [row["received"] for row in await central.post.inbox.nodes()] == [300]


async def test_how_updates_ended_is_told_in_pages(tmp_path: Path) -> None:
    service, _ = scripted()
    sent = [Item("a", "a", "report", "status", 1.0, 0, b'{"outcome": "committed"}'), *items(2), *items(1, 5, "node")]
    async with deferring(service, tmp_path, hub_role="hub") as node:
        await deliver(node, parcel.pack("n1", sent))
        _, listed, _ = await node.send("GET", "/v1/hub/reports")
        assert [row["report"] for row in listed["data"]] == [{"outcome": "committed"}, 0, 1]
        assert {row["node"] for row in listed["data"]} == {"n1"}
        assert listed["has_more"] is False
        after = listed["data"][0]["number"]
        _, rest, _ = await node.send("GET", f"/v1/hub/reports?after={after}")
        assert rest["data"] == listed["data"][1:]
        for wrong in ("x", "-1", "9" * 30):
            assert (await node.send("GET", f"/v1/hub/reports?after={wrong}"))[0] == 400
    async with deferring(service, tmp_path) as node:
        assert (await node.send("GET", "/v1/hub/reports"))[0] == 404
