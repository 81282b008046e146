"""Anything behind a network as a TokenSource."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from node.errors import Overloaded, UpstreamFailed
from node.generation import Event, Failed, Finished, Request, Started, Token
from node.mesh.remote import Held, Remote

REQUEST = Request("r", (1, 2, 3), 5)
Step = Event | BaseException | asyncio.Event


class Scripted:
    """Plays its steps: events are given, exceptions raised, asyncio events waited for."""

    name = "Somebody"

    def __init__(self, *steps: Step) -> None:
        self.steps = steps
        self.closed = False

    async def answer(self, request: Request, held: Held) -> AsyncIterator[Event]:
        try:
            for step in self.steps:
                if isinstance(step, BaseException):
                    raise step
                if isinstance(step, asyncio.Event):
                    await step.wait()
                else:
                    await held.wait()
                    yield step
        finally:
            self.closed = True


async def play(*steps: Step) -> list[Event]:
    heard: list[Event] = []
    over = asyncio.Event()

    def sink(event: Event) -> None:
        heard.append(event)
        if isinstance(event, Finished | Failed):
            over.set()

    upstream = Scripted(*steps)
    Remote(upstream).submit(REQUEST, sink)
    assert not heard, "never from inside submit"
    async with asyncio.timeout(10):
        await over.wait()
        while not upstream.closed:  # noqa: ASYNC110
            await asyncio.sleep(0)
    return heard


async def test_events_come_in_order_and_nothing_after_the_end() -> None:
    steps = (Started(2), Token(1, b"a"), Finished("stop", 3, 1), Token(2, b"b"))
    assert await play(*steps) == list(steps[:3])


FAILURES = [
    (ValueError("that nobody thought of"), "in the middle"),
    (aiohttp.ClientConnectionError("x"), "cannot be reached"),
    (ConnectionResetError("x"), "cannot be reached"),
    (TimeoutError(), "cannot be reached"),
    (None, "in the middle"),
]


@pytest.mark.parametrize(("error", "word"), FAILURES)
async def test_whatever_breaks_is_one_failure(error: BaseException | None, word: str) -> None:
    heard = await play(Token(1, b"a"), *([error] if error else []))
    assert heard[0] == Token(1, b"a")
    assert len(heard) == 2
    assert isinstance(heard[1], Failed)
    assert isinstance(heard[1].error, UpstreamFailed)
    assert word in heard[1].error.message


async def test_its_own_refusal_is_passed_on() -> None:
    refusal = Overloaded("full", retry_after=3)
    assert await play(refusal) == [Failed(refusal)]


async def test_cancel_ends_it_at_once_and_closes_what_is_open() -> None:
    heard: list[Event] = []
    upstream = Scripted(Token(1, b"a"), asyncio.Event())
    remote = Remote(upstream)
    remote.submit(REQUEST, heard.append)
    while not heard:  # noqa: ASYNC110
        await asyncio.sleep(0)
    remote.cancel("r")
    remote.cancel("r")
    remote.cancel("unknown")
    async with asyncio.timeout(10):
        while not upstream.closed or len(heard) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert heard == [Token(1, b"a"), Finished("cancelled", 3, 0)]


async def test_a_held_request_is_not_read_from() -> None:
    heard: list[Event] = []
    remote = Remote(Scripted(Token(1, b"a"), Finished("stop", 3, 1)))
    remote.submit(REQUEST, heard.append)
    remote.hold("r", True)
    remote.hold("unknown", True)
    await asyncio.sleep(0.02)
    assert not heard
    remote.hold("r", False)
    async with asyncio.timeout(10):
        while len(heard) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_close_stops_everything_and_tells_nobody() -> None:
    heard: list[Event] = []
    upstream = Scripted(asyncio.Event())
    remote = Remote(upstream)
    remote.submit(REQUEST, heard.append)
    await asyncio.sleep(0)
    await remote.close()
    assert upstream.closed
    assert not heard


async def test_what_was_cancelled_takes_no_later_one_of_the_same_id_with_it() -> None:
    never, heard = asyncio.Event(), []
    remote = Remote(Scripted(Token(1, b"a"), never))
    remote.submit(REQUEST, lambda event: None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    remote.cancel("r")
    remote.submit(REQUEST, heard.append)
    for _ in range(10):
        await asyncio.sleep(0)
    assert heard == [Token(1, b"a")]
    await remote.close()
