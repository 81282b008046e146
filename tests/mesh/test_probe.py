"""Asking a neighbour: what it says, and every way in which it can say nothing or nonsense."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from node.mesh import sight as sights
from node.mesh import sketch
from node.mesh.handshake import Refusals, server_context
from node.mesh.listener import Listener
from node.mesh.peers import Place
from node.mesh.probe import Prober, Silent
from tests.mesh.fleets import Fleet
from tests.mesh.sights import sight

SKETCH = sketch.draw(b"k", [(None, range(128))])


class Stage:
    """A listener that says what it is told to, and a prober that asks it."""

    def __init__(self, folder: Path) -> None:
        self.fleet = Fleet(folder)
        self.own = self.fleet.node("own")
        self.prober = Prober(self.fleet.node("caller"), 1234, Refusals())
        self.refusals = Refusals()
        self.has: list[str] = []
        self.says: Callable[[], bytes] = lambda: sights.write(sight(self.own.id))

    def told(self, have: str) -> bytes:
        self.has.append(have)
        return self.says()

    @asynccontextmanager
    async def place(self, node_id: str | None = None) -> AsyncIterator[Place]:
        listener = Listener(server_context(self.own, self.refusals), self.told, lambda: b"list", lambda *_: None)
        port = await listener.start(0)
        try:
            yield Place(("127.0.0.1",), port, self.own.id if node_id is None else node_id)
        finally:
            await self.prober.close()
            await listener.stop()


async def test_an_answer_and_who_gave_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.place() as place:
        answer = await stage.prober.ask("a", place)
        assert (answer.id, answer.sight) == (stage.own.id, sight(stage.own.id))
        assert 0 < answer.round_trip_s < 1
        session = stage.prober.session("a")
        assert session is not None
        async with session.get("/mesh/denied") as response:
            assert await response.read() == b"list"
        assert await stage.prober.fetch_denied("a") == b"list"
    assert stage.prober.session("a") is None


async def test_a_place_whose_node_is_not_known_yet(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.place("") as place:
        assert (await stage.prober.ask("a", place)).id == stage.own.id


async def test_a_name_instead_of_an_address(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.place("") as place:
        assert (await stage.prober.ask("a", Place(("localhost",), place.port))).id == stage.own.id


async def test_one_address_of_several_is_enough(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.place() as place:
        there = Place(("127.0.0.2", "::1", "127.0.0.1"), place.port, place.id)
        assert (await stage.prober.ask("a", there)).id == stage.own.id


async def test_a_sketch_is_sent_once(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.says = lambda: sights.write(sight(stage.own.id, sketch=SKETCH))
    async with stage.place() as place:
        assert (await stage.prober.ask("a", place)).sight.sketch == SKETCH
        stage.says = lambda: sights.write(sight(stage.own.id, sketch_same=True, waiting=1))
        second = (await stage.prober.ask("a", place)).sight
    assert (second.sketch, second.sketch_same, second.waiting) == (SKETCH, False, 1)
    assert stage.has == ["", sketch.digest(SKETCH)]


def lies(own: str) -> dict[str, bytes]:
    """What no neighbour in order says."""
    good = sights.write(sight(own))
    return {
        "somebody else": sights.write(sight("f" * 16)),
        "nothing": b"",
        "noise": b"\xff" * 100,
        "huge": b"x" * (sights.MAX_BYTES + 1),
        "cut": good[:-3],
        "html": b"<html>log in to the hotel</html>",
    }


@pytest.mark.parametrize("kind", ["somebody else", "nothing", "noise", "huge", "cut", "html"])
async def test_lies_and_garbage_are_silence(tmp_path: Path, kind: str) -> None:
    stage = Stage(tmp_path)
    stage.says = lambda: lies(stage.own.id)[kind]
    async with stage.place() as place:
        with pytest.raises(Silent) as silent:
            await stage.prober.ask("a", place)
    assert "another node" in str(silent.value) if kind == "somebody else" else "no sense" in str(silent.value)


async def test_one_that_takes_a_connection_and_never_says_a_word(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    taken: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda reader, writer: taken.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(Silent, match=r"in time|cannot be reached"):
        await stage.prober.ask("b", Place(("127.0.0.1",), port, stage.own.id))
    await stage.prober.close()
    for writer in taken:
        writer.close()
    server.close()


async def test_nobody_there(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.place() as place:
        pass
    with pytest.raises(Silent, match="nobody listens"):
        await stage.prober.ask("a", place)
    await stage.prober.close()


async def test_no_address(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    with pytest.raises(Silent, match="cannot be reached"):
        await stage.prober.ask("a", Place((), 1, "f" * 16))
    with pytest.raises(Silent, match="not there"):
        await stage.prober.fetch_denied("unknown")
    await stage.prober.close()


async def test_one_that_refuses_us_says_why_in_its_status(tmp_path: Path) -> None:
    stage = Stage(tmp_path)

    def refuse() -> bytes:
        raise web.HTTPServiceUnavailable

    stage.says = refuse
    async with stage.place() as place:
        with pytest.raises(Silent, match="answered 503"):
            await stage.prober.ask("a", place)


@pytest.mark.parametrize("kind", ["expired", "future", "foreign", "self-signed"])
async def test_a_wrong_node_reaches_nobody_and_is_told_something_useful(tmp_path: Path, kind: str) -> None:
    stage = Stage(tmp_path)
    prober = Prober(stage.fleet.wrong(kind), 1, Refusals())
    async with stage.place() as place:
        with pytest.raises(Silent, match="certificate"):
            await prober.ask("a", place)
        assert len(stage.refusals.counts) == 1
    await prober.close()


async def test_a_wrong_node_is_not_asked_twice_on_one_connection(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.place("f" * 16) as place:
        with pytest.raises(Silent, match="not the neighbour it should be"):
            await stage.prober.ask("a", place)
        moved = Place(place.addresses, place.port, stage.own.id)
        assert (await stage.prober.ask("a", moved)).id == stage.own.id, "a new place gets a new session"


async def test_a_new_certificate_is_shown_from_then_on(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    prober = Prober(stage.fleet.wrong("expired"), 1, Refusals())
    async with stage.place() as place:
        with pytest.raises(Silent):
            await prober.ask("a", place)
        prober.renew(stage.fleet.node("fresh"))
        assert (await prober.ask("a", place)).id == stage.own.id
    await prober.close()
