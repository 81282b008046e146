"""A neighbour as an upstream: one that keeps to what was agreed, and every kind that does not."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from node.errors import Conflict, NodeError, Overloaded, UpstreamFailed
from node.generation import Caller, Event, Failed, Finished, Request, Started, Token
from node.mesh import forward, wire
from node.mesh.forward import Peer, seconds
from node.mesh.remote import Held, Remote
from tests.support.service import ByteModel, running_app

REQUEST = Request("r-1", (1, 2, 3), 4, caller=Caller("acme", "u", "s"))
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def sends(*pieces: bytes | float | None, status: int = 200, kind: str = wire.CONTENT_TYPE) -> Handler:
    """A neighbour that sends bytes, waits so many seconds, or (None) drops the connection."""

    async def handler(request: web.Request) -> web.StreamResponse:
        request.app[SEEN].append(wire.errand(await request.read()))
        response = web.StreamResponse(status=status, headers={"Content-Type": kind, "Retry-After": "7"})
        await response.prepare(request)
        for piece in pieces:
            if piece is None:
                assert request.transport is not None
                request.transport.abort()
            elif isinstance(piece, bytes):
                await response.write(piece)
            else:
                await asyncio.sleep(piece)
        return response

    return handler


SEEN: web.AppKey[list[wire.Errand]] = web.AppKey("seen", list)


@asynccontextmanager
async def peer(handler: Handler, silence_s: float = 5.0) -> AsyncIterator[tuple[Peer, web.Application]]:
    app = web.Application()
    app[SEEN] = []
    app.router.add_post(wire.PATH, handler)
    async with running_app(app) as url, aiohttp.ClientSession(url) as session:
        yield Peer("n1", lambda id: session, ByteModel(), "same", silence_s), app


async def hear(source: Peer, request: Request = REQUEST) -> list[Event]:
    heard: list[Event] = []
    over = asyncio.Event()

    def sink(event: Event) -> None:
        heard.append(event)
        if isinstance(event, Finished | Failed):
            over.set()

    Remote(source).submit(request, sink)
    async with asyncio.timeout(20):
        await over.wait()
    return heard


def frames(*events: Event) -> bytes:
    return b"".join(map(wire.frame, events))


async def test_its_events_are_ours() -> None:
    events = [Started(1), Token(72, b"H"), Token(105, b"i"), Finished("stop", 3, 2)]
    async with peer(sends(frames(*events[:2]), wire.ALIVE, frames(*events[2:]))) as (source, app):
        assert await hear(source) == events
        (asked,) = app[SEEN]
    assert (asked.prompt, asked.hops, asked.model_digest) == ((1, 2, 3), 1, "same")
    assert asked.tenant == wire.tenant_digest("acme") != "acme"


LIARS = [
    (sends(frames(*[Token(65, b"A")] * 5)), "more than it was asked"),
    (sends(frames(Token(65, b"A"), Finished("length", 3, 4))), "before its answer was whole"),
    (sends(frames(Token(65, b"A"), Finished("cancelled", 3, 1))), "before its answer was whole"),
    (sends(wire.frame(Token(257, b"?"))), "token that this model does not have"),
    (sends(struct.pack(">H", 60_000)), "a frame of 60000 bytes"),
    (sends(b"\0\x05<html"), "says nothing"),
    (sends(b"A" * (1 << 20)), "a frame of"),
    (sends(frames(Token(65, b"A"))), "in the middle"),
    (sends(frames(Token(65, b"A")), None), "cannot be reached"),
    (sends(b"<html>", kind="text/html"), "answers 200"),
    (sends(b"<html>", status=502, kind="text/html"), "answers 502"),
    (sends(b"", status=302), "answers 302"),
]


@pytest.mark.parametrize(("handler", "word"), LIARS)
async def test_a_neighbour_that_lies_or_breaks_is_a_failure(handler: Handler, word: str) -> None:
    async with peer(handler) as (source, _):
        heard = await hear(source)
    assert isinstance(heard[-1], Failed)
    assert isinstance(heard[-1].error, UpstreamFailed), heard
    assert word in heard[-1].error.message
    assert len(heard) <= 5


async def test_silence_is_a_failure_and_signs_of_life_are_not() -> None:
    async with peer(sends(frames(Token(65, b"A")), 30.0), silence_s=0.2) as (source, _):
        heard = await hear(source)
    assert isinstance(heard[-1], Failed)
    alive = [piece for _ in range(5) for piece in (wire.ALIVE, 0.1)]
    async with peer(sends(*alive, frames(Finished("stop", 3, 0))), silence_s=5.0) as (source, _):
        assert await hear(source) == [Finished("stop", 3, 0)]


async def test_signs_of_life_alone_are_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "FIRST_S", 0.05)
    async with peer(sends(*[piece for _ in range(100) for piece in (wire.ALIVE, 0.02)])) as (source, _):
        (end,) = await hear(source)
    assert isinstance(end, Failed)
    assert "makes no tokens" in end.error.message


async def test_one_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "ACCEPT_S", 0.1)

    async def sleeps(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    async with peer(sleeps) as (source, _):
        (end,) = await hear(source)
    assert isinstance(end, Failed)


REFUSALS: list[tuple[NodeError, type[NodeError]]] = [(Overloaded("full"), Overloaded), (Conflict("other"), Conflict)]


@pytest.mark.parametrize(("error", "kind"), REFUSALS)
async def test_its_refusal_is_passed_on_with_its_retry_after(error: NodeError, kind: type[NodeError]) -> None:
    async with peer(sends(wire.frame(Failed(error)), status=error.status)) as (source, _):
        (end,) = await hear(source)
    assert isinstance(end, Failed)
    assert type(end.error) is kind
    assert end.error.retry_after == 7


async def test_a_held_request_is_not_read() -> None:
    async with peer(sends(frames(Token(65, b"A")), frames(Finished("stop", 3, 1)))) as (source, _):
        held = Held()
        held.set(True)
        events = source.answer(REQUEST, held)
        first = asyncio.create_task(anext(aiter(events)))  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        assert not first.done()
        held.set(False)
        assert await asyncio.wait_for(first, 10) == Token(65, b"A")


@pytest.mark.parametrize(
    ("sent", "meant"),
    [("3", 3), ("0", 1), ("99999", 3600), ("-1", None), ("soon", None), (None, None), ("1e3", None), ("٣", None)],
)
def test_retry_after_is_seconds_or_nothing(sent: str | None, meant: int | None) -> None:
    assert seconds(sent) == meant
