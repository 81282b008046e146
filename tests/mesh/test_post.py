"""The outbox and its friends joined: off unless asked for, and what a node tells stays within the table."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from node.errors import OutboxFull, SettingsError, Unavailable
from node.mesh.listener import PEER
from node.mesh.post import PostOffice, shown
from tests.conftest import settings
from tests.support.hubs import FakeHub, emptied, hub, until
from tests.support.service import running_app


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path / "home"))


async def test_a_port_that_is_picked_anew_keeps_nothing(tmp_path: Path) -> None:
    post = PostOffice(settings())
    await post.start()
    assert (post.outbox, post.later, post.inbox) == (None, None, None)
    assert post.status() == {}
    await post.stop()
    told = PostOffice(settings(hub_url="http://127.0.0.1:9")).status()
    assert told["hub"]["state"] == "no outbox"


async def test_a_fixed_port_keeps_what_waits_beside_the_data(tmp_path: Path) -> None:
    post = PostOffice(settings(server_port=18099, hub_role="hub"))
    await post.start()
    await post.stop()
    names = {path.name for path in (tmp_path / "home").iterdir()}  # a test may
    assert {"outbox-18099.db", "hub-18099.db"} <= names


async def test_who_wants_no_deferred_requests_has_none(tmp_path: Path) -> None:
    post = PostOffice(settings(outbox_database=tmp_path / "o.db", outbox_later="never"))
    assert post.later is None
    assert post.outbox is not None


async def test_a_secret_that_is_not_there_is_told_at_the_start(tmp_path: Path) -> None:
    given = {"outbox_callbacks": "https://a.example/", "outbox_callback_secret_file": tmp_path / "none"}
    with pytest.raises(SettingsError, match="callback_secret_file"):
        await PostOffice(settings(outbox_database=tmp_path / "o.db", **given)).start()


async def test_records_reach_the_hub_and_say_nothing_of_what_was_asked(tmp_path: Path) -> None:
    fake = FakeHub()
    status = {"model": {"id": "m"}, "queue": {"running": 1}, "secret": {"prompt": "canary"}}
    async with hub(fake) as url:
        post = PostOffice(settings(outbox_database=tmp_path / "o.db", hub_url=url, hub_telemetry_s=1), sweep_s=0.05)
        await post.start()
        post.tell(lambda: status, lambda: "ready")
        await until(lambda: len(fake.items) >= 2)
        await until(lambda: post.status()["outbox"]["delivered"] >= 2)
        assert post.status()["hub"]["state"] == "reached"
        await post.stop()
    for item in fake.items:
        assert (item.stream, item.priority) == ("node", "telemetry")
        told = json.loads(item.body)
        assert (told["state"], told["model"]) == ("ready", {"id": "m"})
        assert b"canary" not in item.body


async def test_without_its_setting_nothing_is_told(tmp_path: Path) -> None:
    post = PostOffice(settings(outbox_database=tmp_path / "o.db"))
    await post.start()
    post.tell(lambda: {}, lambda: "ready")
    assert post.outbox is not None
    assert (await post.outbox.look())["waiting"] == 0
    await post.stop()


async def test_other_rooms_put_what_is_theirs(tmp_path: Path) -> None:
    """Reports of the fleet, for one."""
    post = PostOffice(settings(outbox_database=tmp_path / "o.db", outbox_max_bytes=1 << 20))
    await post.start()
    assert post.outbox is not None
    id = await post.outbox.put("report", b"{}", priority="status", key="rollout-7", expires_s=60)
    assert await post.outbox.put("report", b"{}", priority="status", key="rollout-7", expires_s=60) == id
    with pytest.raises(OutboxFull):
        await post.outbox.put("report", os.urandom(1 << 20))
    await post.stop()


async def test_a_neighbour_is_known_by_its_certificate_and_needs_no_key(tmp_path: Path) -> None:
    """The listener's part is played here: it says who asks, whatever the parcel says."""
    central = PostOffice(settings(outbox_database=tmp_path / "hub.db", hub_role="hub"))
    await central.start()
    app = web.Application(middlewares=[_says_who("peer-7")])
    central.serve_neighbours(app)
    async with running_app(app) as url, aiohttp.ClientSession(url) as session:
        lost = Unavailable("the hub is no neighbour now.")
        ways: list[aiohttp.ClientSession | Unavailable] = [lost, session]

        def mesh(node: str) -> aiohttp.ClientSession:
            assert node == "the-hub"
            way = ways.pop(0) if len(ways) > 1 else ways[0]
            if isinstance(way, Unavailable):
                raise way
            return way

        post = PostOffice(settings(outbox_database=tmp_path / "o.db", hub_node="the-hub"), sweep_s=0.05)
        post.mesh = mesh
        await post.start()
        assert post.outbox is not None
        await post.outbox.put("report", b"{}")
        await until(lambda: post.status()["hub"].get("reason") == lost.message)
        await emptied(post.outbox)
        await post.stop()
    assert central.inbox is not None
    assert [(row["id"], row["received"]) for row in await central.inbox.nodes()] == [("peer-7", 1)]
    await central.stop()


def _says_who(id: str) -> Middleware:
    @web.middleware
    async def says(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[PEER] = id
        return await handler(request)

    return says


async def test_who_is_no_hub_takes_nothing_from_neighbours(tmp_path: Path) -> None:
    app = web.Application()
    PostOffice(settings(outbox_database=tmp_path / "o.db")).serve_neighbours(app)
    assert not list(app.router.resources())


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (None, {"state": None, "version": None, "model": None, "rung": None}),
        (b"\xff\xfe", {}),
        (b"[1]", {}),
        (b'{"state": 5, "model": 7, "load": [], "version": "' + b"9" * 500 + b'"}', {"state": None, "model": None}),
        (
            b'{"state": "ready", "version": "1", "model": {"id": "m"}, "load": {"rung": "shed"}}',
            {"state": "ready", "version": "1", "model": "m", "rung": "shed"},
        ),
        (b'{"state": "\\u001b[2J"}', {"state": None}),
    ],
)
def test_a_node_is_shown_by_its_age_whatever_it_sent(record: bytes | None, told: dict[str, Any]) -> None:
    seen = shown({"id": "n", "seen_s": 7200.04, "known_s": 9e4, "received": 3, "again": 1, "record": record})
    assert seen["seen_s"] == 7200.0
    assert (seen["received"], seen["again"]) == (3, 1)
    assert {key: seen[key] for key in told} == told
    assert len(str(seen)) < 400
