"""Answering for neighbours: what is refused, what is bounded, and that the connection's end is the request's end."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web

from node.errors import Conflict, InvalidRequest, NodeError, Overloaded, Unavailable
from node.generation import Event, Failed, Finished, Request, Started, Token, TokenSource
from node.mesh import serving, wire
from node.mesh.serving import Serving, Share
from tests.support.service import ByteModel, ScriptedSource, Step, running_app

REQUEST = Request("r-1", (1, 2, 3), 50, level="standard")


class Numbered(ScriptedSource):
    """Token ids are those of their bytes."""

    def submit(self, request: Request, sink: object) -> None:  # type: ignore[override]
        def tell(event: Event) -> None:
            sink(Token(event.piece[0], event.piece) if isinstance(event, Token) else event)  # type: ignore[operator]

        super().submit(request, tell)


class Bench:
    """A serving node with a scripted source."""

    def __init__(self, *script: Step, share: Share | None = None, own: str = "") -> None:
        self.source = Numbered(script or ("H", "i"))
        self.share = share or Share(4, 0.5, 3)
        self.serving = Serving(ByteModel(), "same", self._choose, self.share, lambda id: id == own)

    def _choose(self, request: Request) -> TokenSource:
        return self.source

    @asynccontextmanager
    async def open(self) -> AsyncIterator[aiohttp.ClientSession]:
        app = web.Application()
        self.serving.add_to(app, lambda request: "peer-one")
        async with running_app(app) as url, aiohttp.ClientSession(url) as session:
            yield session


async def ask(session: aiohttp.ClientSession, request: Request = REQUEST, digest: str = "same") -> list[Event]:
    async with session.post(wire.PATH, data=wire.errand_of(request, digest)) as response:
        reader = wire.Reader(257, lambda id: bytes([id]))
        return reader.feed(await response.read())


async def test_a_neighbour_is_answered_as_tenant_mesh() -> None:
    bench = Bench()
    async with bench.open() as session:
        events = await ask(session, replace(REQUEST, continued=(9,), level="background"))
    assert events == [Started(2), Token(72, b"H"), Token(105, b"i"), Finished("stop", 3, 2)]
    (ran,) = bench.source.submitted
    assert (ran.caller.tenant, ran.level, ran.hops, ran.continued) == ("mesh", "background", 1, (9,))
    assert ran.id.startswith("r-1~")
    assert wire.errand(wire.errand_of(ran, "same")).id == "r-1", "further on it can be known again"
    assert bench.serving.status() == {
        **{"served": 1, "refused": 0, "broken": 0, "running": 0, "slots_taken": 0, "slots": 2}
    }


async def refusal(bench: Bench, request: Request = REQUEST, digest: str = "same") -> NodeError:
    async with bench.open() as session:
        (event,) = await ask(session, request, digest)
    assert isinstance(event, Failed)
    assert bench.share.taken == 0
    return event.error


async def test_another_model_and_a_request_that_comes_round_are_conflicts() -> None:
    assert isinstance(await refusal(Bench(), digest="other"), Conflict)
    assert isinstance(await refusal(Bench(own="r-1")), Conflict)


async def test_one_that_is_being_served_is_not_served_twice() -> None:
    wait = asyncio.Event()
    bench = Bench("a", wait)
    async with bench.open() as session:
        first = asyncio.create_task(ask(session))
        async with asyncio.timeout(10):
            while not bench.source.busy:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        (second,) = await ask(session)
        wait.set()
        assert len(await first) == 3
    assert isinstance(second, Failed)
    assert isinstance(second.error, Conflict)


async def test_what_the_gate_refuses_is_refused_with_its_status() -> None:
    bench = Bench()
    bench.source.refusal = Overloaded("full", retry_after=9)
    async with bench.open() as session:
        async with session.post(wire.PATH, data=wire.errand_of(REQUEST, "same")) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "9")
    assert bench.share.taken == 0
    assert isinstance(await refusal(Bench(), replace(REQUEST, prompt=(300,))), InvalidRequest)


@pytest.mark.parametrize("body", [b"", b"<html>", b"\xc1" * 100])
async def test_junk_is_a_400(body: bytes) -> None:
    async with Bench().open() as session, session.post(wire.PATH, data=body) as response:
        assert response.status == 400


async def test_a_body_that_is_too_large_is_not_read() -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield b"\0" * (1 << 16)

    async with Bench().open() as session:
        async with session.post(wire.PATH, data=io.BytesIO(b"\0" * (wire.MAX_BYTES + 1))) as response:
            assert response.status == 413
        async with session.post(wire.PATH, data=endless()) as response:
            assert response.status == 413


async def test_how_much_is_on_its_way_in_is_bounded_and_given_back() -> None:
    """A member of the fleet that begins many large requests takes a bounded amount of memory."""
    release = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"\0"
        await release.wait()

    bench = Bench()
    async with bench.open() as session:
        begun = [asyncio.create_task(session.post(wire.PATH, data=slow())) for _ in range(2)]
        async with asyncio.timeout(10):
            while bench.serving._arriving.total() < 2 * wire.MAX_BYTES:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        (event,) = await ask(session)
        assert isinstance(event, Failed)
        assert isinstance(event.error, Overloaded)
        release.set()
        assert [(await task).status for task in begun] == [400, 400]
        assert len(await ask(session)) == 4
    assert not bench.serving._arriving


async def test_what_would_take_more_than_the_share_from_this_nodes_people_is_not_urgent_here() -> None:
    """On a node of few slots neighbours' urgent requests could displace everybody else, for ever."""
    for slots, level, ran_at in (
        (1, "critical", "standard"),
        (4, "interactive", "standard"),
        (8, "critical", "critical"),
    ):
        bench = Bench(share=Share(slots, 0.5, 3))
        async with bench.open() as session:
            await ask(session, replace(REQUEST, level=level))  # type: ignore[arg-type]
        assert bench.source.submitted[0].level == ran_at
    assert Share(1, 0.5).level("background") == "background"


async def test_signs_of_life_while_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEARTBEAT_S", 0.01)
    wait = asyncio.Event()
    async with Bench(wait, "a").open() as session:
        async with session.post(wire.PATH, data=wire.errand_of(REQUEST, "same")) as response:
            seen = b""
            async with asyncio.timeout(10):
                while seen.count(wire.ALIVE) < 3:
                    seen += await response.content.readany()
            wait.set()
            rest = seen + await response.read()
    events = wire.Reader(257, lambda id: bytes([id])).feed(rest)
    assert events == [Started(2), Token(97, b"a"), Finished("stop", 3, 1)]


async def test_a_connection_that_closes_ends_the_request() -> None:
    bench = Bench("a", asyncio.Event())
    async with bench.open() as session:
        async with session.post(wire.PATH, data=wire.errand_of(REQUEST, "same")) as response:
            await response.content.readany()
            response.close()
        async with asyncio.timeout(10):
            await bench.source.cancel_seen.wait()
            while bench.share.taken:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


async def test_a_reader_that_lags_holds_its_request() -> None:
    bench = Bench()
    outgoing = serving._Outgoing(bench.source, "x")
    for _ in range(300):
        outgoing.feed(Token(1, b"a"))
    assert bench.source.held == [("x", True)]
    await outgoing.next(1.0)
    assert bench.source.held == [("x", True), ("x", False)]
    outgoing.feed(Finished("stop", 1, 300))
    await outgoing.next(1.0)
    assert outgoing.told
    outgoing.close()
    assert bench.source.cancelled == []


def test_neighbours_never_take_all_slots() -> None:
    share = Share(8, 0.5, 3)
    taken = [share.take("interactive"), share.take("standard")]
    assert taken == [3, 1]
    with pytest.raises(Overloaded):
        share.take("background")
    share.give(3)
    assert share.take("background") == 1
    with pytest.raises(Overloaded):
        share.take("critical")


def test_one_alone_fits_the_smallest_share_and_none_fits_none() -> None:
    assert Share(2, 0.1, 3).take("critical") == 1
    with pytest.raises(Unavailable, match=r"routes\.share"):
        Share(8, 0.0).take("standard")
