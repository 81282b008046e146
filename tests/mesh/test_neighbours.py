"""Nodes among each other, in one process over loopback: they find each other by an address, and part again."""

from __future__ import annotations

import datetime
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from node.errors import SettingsError, Unavailable
from node.generation import Request
from node.mesh import identity as enrolment
from node.mesh import sketch
from node.mesh.identity import folder_in
from node.mesh.neighbourhood import Neighbourhood
from node.mesh.neighbours import Neighbours
from node.mesh.sight import Sight
from node.settings import Mesh
from tests.mesh.fleets import MONTH, Fleet
from tests.mesh.nodes import Still, started, until


@dataclass(frozen=True)
class Told:
    """A neighbour of which only this is known."""

    sight: Sight


def at(node: Neighbours) -> list[str]:
    return [f"127.0.0.1:{node.port}"]


def ids(node: Neighbours) -> set[str]:
    return {neighbour.id for neighbour in node.candidates()}


async def test_a_node_in_no_fleet_is_alone(tmp_path: Path) -> None:
    node = Neighbours(Mesh(port=0, peers=("127.0.0.1:1",)), folder_in(tmp_path), Still())
    await node.start()
    assert (node.id, node.port, node.candidates(), node.status()) == ("", 0, [], {"mesh": {"state": "alone"}})
    with pytest.raises(Unavailable):
        node.session("f" * 16)
    node.doubt("f" * 16, "x")
    node.drain()
    await node.stop()


async def test_a_node_that_is_told_to_stay_alone(tmp_path: Path) -> None:
    Fleet(tmp_path).node("a")
    node = await started(tmp_path / "a", enabled=False)
    assert node.status() == {"mesh": {"state": "alone"}}
    await node.stop()


async def test_a_broken_enrolment_is_told_and_the_node_goes_on_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Fleet(tmp_path).node("a")
    (tmp_path / "a" / "node.key").write_text("broken")
    node = await started(tmp_path / "a")
    assert node.status()["mesh"]["state"] == "alone"
    assert "no private key" in node.status()["mesh"]["reason"]
    assert node.port == 0
    assert "its enrolment cannot be used" in caplog.text
    await node.stop()


async def test_one_address_on_one_side_is_enough_for_both(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    a, b = fleet.node("a"), fleet.node("b")
    first = await started(tmp_path / "a", portrait=Still(free_slots=1))
    second: Neighbourhood = await started(tmp_path / "b", at(first))
    assert isinstance(second, Neighbours)
    try:
        await until(lambda: ids(first) == {b.id} and ids(second) == {a.id})
        (seen,) = second.candidates()
        assert (seen.sight.free_slots, seen.sight.id, seen.sight.name) == (1, a.id, "a")
        async with second.session(a.id).get("/mesh/status") as response:
            assert response.status == 200
        section = second.status()["mesh"]
        assert section["neighbours"][a.id]["state"] == "alive"
        assert (section["state"], section["alive"], section["refused"]) == ("open", 1, {})
        # Now the first one stops: the other one notices at once, because a watch is open.
        begun = time.monotonic()
        await first.stop()
        await until(lambda: not ids(second))
        assert time.monotonic() - begun < 10
        await until(lambda: bool(second.status()["mesh"]["unreached"]))
    finally:
        await second.stop()
        await first.stop()


async def test_a_foreign_node_sees_nobody_and_nobody_sees_it(tmp_path: Path) -> None:
    fleet, other = Fleet(tmp_path / "1"), Fleet(tmp_path / "2")
    fleet.node("a")
    other.node("b")
    first = await started(tmp_path / "1" / "a")
    second = await started(tmp_path / "2" / "b", at(first))
    try:
        await until(lambda: bool(second.status()["mesh"]["unreached"]))
        assert ids(first) == ids(second) == set()
        assert second.status()["mesh"]["refused"] == {"its certificate is of another fleet": 1}
        ((_, why),) = second.status()["mesh"]["unreached"].items()
        assert "not the neighbour it should be" in why["reason"]
    finally:
        await second.stop()
        await first.stop()


async def test_who_was_doubted_is_asked_and_comes_back(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    a = fleet.node("a")
    fleet.node("b")
    first = await started(tmp_path / "a")
    second = await started(tmp_path / "b", at(first))
    try:
        await until(lambda: ids(second) == {a.id})
        second.doubt(a.id, "a stream broke")
        assert ids(second) == set()
        await until(lambda: ids(second) == {a.id})
    finally:
        await second.stop()
        await first.stop()


async def test_a_node_that_drains_tells_who_watches_it(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    a = fleet.node("a")
    fleet.node("b")
    portrait = Still()
    first = await started(tmp_path / "a", portrait=portrait)
    second = await started(tmp_path / "b", at(first))
    try:
        await until(lambda: ids(second) == {a.id})
        portrait.says["draining"] = True
        first.drain()
        await until(lambda: second.status()["mesh"]["neighbours"][a.id]["state"] == "draining", 5)
        assert ids(second) == set()
    finally:
        await second.stop()
        await first.stop()


async def test_a_denial_goes_from_node_to_node(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    a, b, c = (fleet.node(name) for name in "abc")
    first = await started(tmp_path / "a")
    second = await started(tmp_path / "b", at(first))
    third = await started(tmp_path / "c", [*at(first), *at(second)])
    try:
        await until(lambda: ids(second) >= {a.id, c.id} and ids(first) == {b.id, c.id})
        _, text = fleet.authority.deny("c")
        enrolment.deny(tmp_path / "a", text)
        await first._reload()  # what it does by itself within seconds
        assert ids(first) == {b.id}
        await until(lambda: bool(second.candidates()) and ids(second) == {a.id})
        found = enrolment.load(tmp_path / "b")
        assert found is not None
        assert found.denied.ids == (c.id,)
        await until(lambda: ids(third) == set())
        assert "it is denied" in first.status()["mesh"]["refused"]
    finally:
        for node in (third, second, first):
            await node.stop()


async def test_a_new_certificate_is_taken_up_while_it_runs(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.node("a")
    node = await started(tmp_path / "a")
    try:
        before = node.status()["mesh"]["certificate_left_s"]
        bundle, _ = fleet.authority.issue(
            "renamed", enrolment.make_request(tmp_path / "a"), 3 * MONTH, datetime.datetime.now(datetime.UTC)
        )
        enrolment.enrol(tmp_path / "a", bundle, datetime.datetime.now(datetime.UTC))
        assert node._stamped() != node._stamp
        await node._reload()
        assert node.status()["mesh"]["certificate_left_s"] > before + MONTH.total_seconds()
        assert node.status()["mesh"]["name"] == "renamed"
        (tmp_path / "a" / "node.crt").write_text("broken")
        await node._reload()
        assert node.status()["mesh"]["name"] == "renamed"
    finally:
        await node.stop()


async def test_leaving_counts_from_the_next_start_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Fleet(tmp_path).node("a")
    node = await started(tmp_path / "a")
    try:
        enrolment.leave(tmp_path / "a")
        await node._reload()
        assert "next start" in caplog.text
        assert node.status()["mesh"]["state"] == "open"
    finally:
        await node.stop()


async def test_a_certificate_that_is_over_is_shown(tmp_path: Path) -> None:
    Fleet(tmp_path).wrong("expired")
    node = await started(tmp_path / "expired")
    try:
        assert node.status()["mesh"]["state"] == "certificate over"
        assert node.status()["mesh"]["certificate_left_s"] < 0
    finally:
        await node.stop()


async def test_a_port_scan_finds_nothing_useful(tmp_path: Path) -> None:
    Fleet(tmp_path).node("a")
    node = await started(tmp_path / "a")
    try:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"http://127.0.0.1:{node.port}/mesh/status")
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"https://127.0.0.1:{node.port}/mesh/status", ssl=False)
    finally:
        await node.stop()


async def test_warm_tokens_of_a_neighbour(tmp_path: Path) -> None:
    Fleet(tmp_path).node("a")
    node = await started(tmp_path / "a")
    try:
        drawn = sketch.draw(node._key, [(None, range(200))])
        asks = node.warm_tokens(range(150), "")
        assert asks(Still(sketch=drawn).draw(b"")) == 128
        assert asks(Still().draw(b"")) == 0
        request = Request("r", tuple(range(160)), 1)
        assert node.warm_share(Told(Still(sketch=drawn).draw(b"")), request) == 128 / 160
        assert node.warm_share(Told(Still(sketch=drawn).draw(b"")), request) == 128 / 160
        assert node.warm_share(Told(Still().draw(b"")), request) == 0.0
        theirs = sketch.draw(node._key, [("mesh", range(200)), ("", range(1000, 1200))])
        assert node.warm_share(Told(Still(sketch=theirs).draw(b"")), Request("r", tuple(range(160)), 1)) == 128 / 160
        own = Request("r", tuple(range(1000, 1160)), 1)
        assert node.warm_share(Told(Still(sketch=theirs).draw(b"")), own) == 0.0, (
            "what its own people asked is not ours"
        )
        assert node.warm_share(Told(Still(sketch=drawn).draw(b"")), Request("r", (), 1)) == 0.0
    finally:
        await node.stop()


async def test_a_port_that_is_taken_is_told_at_the_start(tmp_path: Path) -> None:
    Fleet(tmp_path).node("a")
    with socket.create_server(("", 0)) as taken:
        node = Neighbours(Mesh(port=taken.getsockname()[1], discover=False), tmp_path / "a", Still())
        with pytest.raises(SettingsError, match=r"mesh\.port|port"):
            await node.start()
        await node.stop()


def test_a_place_that_is_none_is_told_before_anything_starts() -> None:
    with pytest.raises(SettingsError, match="no HOST:PORT"):
        Neighbours(Mesh(peers=("10.0.0.1:x",)), Path(), Still())
