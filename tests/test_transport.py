"""The client over real connections that break: the real application behind a cable, over both transports."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from node import errors
from node.answer import TextDelta, TextRewind
from node.chunks import BrokenStream, ClientError, Unreachable
from node.client import Client, Done, Event, Patience
from node.errors import NodeError
from node.layers import load
from node.server.app import STREAMS, create_app
from node.store.db import Database
from node.store.streams import StreamStore
from node.stream.playout import Playout
from tests.support.cable import Cable, cable, until
from tests.support.service import ScriptedSource, Step, running_app, scripted
from tests.test_client import END, LAST, USER, free_port, refuse, script, serving, text

WORDS = [f"word{number} é👍 " for number in range(120)]
WHOLE = "".join(WORDS)
KEY = "k" * 16
QUICK = Patience(first_s=0.01, most_s=0.1, give_up_s=5.0, start_s=0.0, silence_s=0.6)
BOTH = pytest.mark.parametrize("transport", ["sse", "ws"])


@dataclass
class Kit:
    """A node with a store, the cable to it, and a client at the cable's other end."""

    node: str
    cable: Cable
    client: Client
    source: ScriptedSource
    store: StreamStore
    app: web.Application


@asynccontextmanager
async def kit(folder: Path, *steps: Step, patience: Patience = QUICK, **flags: Any) -> AsyncIterator[Kit]:
    database = Database(folder / "node.db")
    await database.open()
    store = StreamStore(database, 1 << 24, 1000)
    service, source = scripted(*steps)
    named = {"server.api_keys": KEY, "server.keepalive_s": "0.2", **flags}
    app = create_app(load(environment={}, flags=named), service, store)
    async with (
        running_app(app) as url,
        cable(url) as wire,
        Client(wire.url, KEY, patience=patience, rng=random.Random(1).random) as client,
    ):
        yield Kit(url, wire, client, source, store, app)
    await database.close()


def slowly(pause_s: float = 0.002) -> list[Step]:
    return [step for word in WORDS for step in (word, pause_s)]


async def collect(events: Any, seen: list[Event] | None = None) -> list[Event]:
    seen = [] if seen is None else seen
    async with asyncio.timeout(20), aclosing(events):
        async for event in events:
            seen.append(event)
    return seen


def said(events: list[Event]) -> str:
    """The text as an application shows it."""
    shown = ""
    for event in events:
        if isinstance(event, TextDelta):
            shown += event.text
        elif isinstance(event, TextRewind):
            assert shown.endswith(event.text_dropped)
            shown = shown.removesuffix(event.text_dropped)
    return shown


def done(events: list[Event]) -> Done:
    assert isinstance(events[-1], Done)
    return events[-1]


@BOTH
async def test_an_answer_without_any_trouble(tmp_path: Path, transport: Any) -> None:
    async with kit(tmp_path, *WORDS) as k:
        for resumable in (False, True):
            events = await collect(k.client.chat(USER, transport=transport, resumable=resumable))
            assert said(events) == WHOLE
            end = done(events)
            assert (end.finish_reason, end.resumes, end.stalls) == ("stop", 0, 0)
            assert end.usage is not None
            assert end.usage.completion_tokens == 120
            assert end.id.startswith("chatcmpl-")
        assert [happening.what for happening in k.client.history] == ["opened"]
        assert k.cable.connections == (1 if transport == "sse" else 2)


@BOTH
async def test_every_cut_is_only_a_pause(tmp_path: Path, transport: Any) -> None:
    async with kit(tmp_path, *slowly()) as k:
        k.cable.cuts = [900, 700, 50, 4000, 1500, 800]
        events = await collect(k.client.chat(USER, transport=transport, resumable=True))
        assert said(events) == WHOLE
        assert not any(isinstance(event, TextRewind) for event in events)
        assert done(events).resumes >= 1
        whats = [happening.what for happening in k.client.history]
        assert whats.count("resumed") == done(events).resumes
        assert whats[-1] == "resumed"
        numbers = [event.seq for event in events if isinstance(event, TextDelta)]
        assert numbers == sorted(set(numbers))
        assert len(k.source.submitted) == 1, "no attempt began a second generation"


@BOTH
async def test_a_cut_before_the_first_byte_joins_the_same_generation(tmp_path: Path, transport: Any) -> None:
    async with kit(tmp_path, 0.3, *WORDS) as k:
        # Over a WebSocket the handshake comes through (under 600 bytes), and what is accepted does not.
        k.cable.cuts = [1 if transport == "sse" else 0, 1, None]
        events = await collect(k.client.chat(USER, transport=transport, resumable=True))
        assert said(events) == WHOLE
        assert len(k.source.submitted) == 1


@BOTH
async def test_a_frozen_connection_is_given_up_for_a_new_one(tmp_path: Path, transport: Any) -> None:
    async with kit(tmp_path, *slowly(0.005)) as k:
        seen: list[Event] = []
        reading = asyncio.create_task(collect(k.client.chat(USER, transport=transport, resumable=True), seen))
        await until(lambda: len(seen) >= 10)
        k.cable.freeze()
        events = await reading
        assert said(events) == WHOLE
        assert done(events).resumes >= 1
        assert any("silent" in happening.why or "broke" in happening.why for happening in k.client.history)


@BOTH
async def test_silence_with_keepalives_is_no_loss(tmp_path: Path, transport: Any) -> None:
    async with kit(tmp_path, "a", 1.5, "b") as k:
        events = await collect(k.client.chat(USER, transport=transport, resumable=True))
        assert (said(events), done(events).resumes, done(events).stalls) == ("ab", 0, 1)
        assert k.cable.connections == 1


@BOTH
async def test_a_pulled_cable_is_waited_for_and_then_given_up(tmp_path: Path, transport: Any) -> None:
    patience = Patience(first_s=0.01, most_s=0.1, give_up_s=0.8, silence_s=0.6)
    async with kit(tmp_path, *slowly(0.01), patience=patience) as k:
        seen: list[Event] = []
        reading = asyncio.create_task(collect(k.client.chat(USER, transport=transport, resumable=True), seen))
        await until(lambda: len(seen) >= 10)
        k.cable.pull()
        await asyncio.sleep(0.3)
        k.cable.plug()
        await until(lambda: len(seen) >= 40)
        k.cable.pull()
        with pytest.raises((BrokenStream, Unreachable)):
            await reading
        assert WHOLE.startswith(said(seen))
        # Whoever comes later still gets all of it.
        k.cable.plug()
        events = await collect(k.client.stream(k.client.history[-1].id, transport=transport))
        assert said(events) == WHOLE


@BOTH
async def test_a_stored_answer_from_any_number(tmp_path: Path, transport: Any) -> None:
    async with kit(tmp_path, *WORDS) as k:
        first = await collect(k.client.chat(USER, transport=transport, resumable=True))
        for start in (0, 7, 119, 120):
            events = await collect(k.client.stream(done(first).id, start, transport=transport))
            assert said(events) == "".join(WORDS[start:])
            assert done(events).finish_reason == "stop"
        events = await collect(k.client.stream(done(first).id, 500, transport=transport))
        assert said(events) == "", "nothing was there to show, and nothing is shown twice"
        assert isinstance(events[0], TextRewind)
        assert events[0].to_seq == 119


@BOTH
async def test_what_cannot_be_given_is_said(tmp_path: Path, transport: Any) -> None:
    async with kit(tmp_path, *WORDS) as k:
        with pytest.raises(errors.NotFound):
            await collect(k.client.stream("chatcmpl-unknown", transport=transport))
        first = await collect(k.client.chat(USER, transport=transport, resumable=True))
        k.store._max_age_s = -1
        await k.store.prune()
        with pytest.raises(errors.Gone):
            await collect(k.client.stream(done(first).id, transport=transport))
        async with Client(k.cable.url, "j" * 16) as stranger:
            with pytest.raises(errors.Unauthorized):
                await collect(stranger.stream(done(first).id, transport=transport))


@BOTH
async def test_what_is_not_resumable_ends_with_its_connection(tmp_path: Path, transport: Any) -> None:
    async with kit(tmp_path, *slowly()) as k:
        k.cable.cuts = [2000]
        seen: list[Event] = []
        with pytest.raises(BrokenStream):
            await collect(k.client.chat(USER, transport=transport), seen)
        assert WHOLE.startswith(said(seen))
        assert k.cable.connections == 1
        await asyncio.wait_for(k.source.cancel_seen.wait(), 20)


@BOTH
async def test_leaving_lets_a_resumable_answer_go_on_until_it_is_stopped(tmp_path: Path, transport: Any) -> None:
    async with kit(tmp_path, *slowly(0.01)) as k:
        async with aclosing(k.client.chat(USER, transport=transport, resumable=True)) as events:
            await anext(events)
        await asyncio.sleep(0.1)
        assert k.source.cancelled == []
        await k.client.stop(k.client.history[-1].id)
        assert len(k.source.cancelled) == 1


@BOTH
async def test_a_generation_that_failed_is_not_come_back_for(tmp_path: Path, transport: Any) -> None:
    async with kit(tmp_path, "a", "b", errors.EngineFailed("The engine broke.")) as k:
        seen: list[Event] = []
        with pytest.raises(errors.EngineFailed, match="broke"):
            await collect(k.client.chat(USER, transport=transport, resumable=True), seen)
        assert (said(seen), k.cable.connections) == ("ab", 1)


@BOTH
async def test_a_busy_node_is_waited_for(tmp_path: Path, transport: Any) -> None:
    slept = []

    async with kit(tmp_path, *WORDS) as k:

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            k.source.refusal = None

        async with Client(k.cable.url, KEY, patience=QUICK, sleep=sleep) as client:
            k.source.refusal = errors.Overloaded("The queue is full.", retry_after=3)
            events = await collect(client.chat(USER, transport=transport, resumable=True))
            assert (said(events), slept) == (WHOLE, [3])
            k.source.refusal = errors.Overloaded("The queue is full.", retry_after=30)
            with pytest.raises(errors.Overloaded):
                await collect(client.chat(USER, transport=transport, resumable=True))
            k.source.refusal = errors.Overloaded("The queue is full.", retry_after=3)
            with pytest.raises(errors.Overloaded):
                await collect(client.chat(USER, transport=transport))
            assert slept == [3]


@BOTH
async def test_nobody_there(transport: Any) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with Client(url) as client:
        for resumable in (False, True):
            with pytest.raises(Unreachable, match="no node answers"):
                await collect(client.chat(USER, transport=transport, resumable=resumable))


@BOTH
@pytest.mark.parametrize("when_ahead", ["rewind", "refuse"])
async def test_a_power_cut_takes_text_back_and_never_mixes_two(tmp_path: Path, transport: Any, when_ahead: str) -> None:
    """The node's second life has fewer entries, and makes the lost ones anew, here even with other words."""
    (tmp_path / "later").mkdir()
    seen: list[Event] = []
    async with (
        kit(tmp_path, *WORDS[:10], asyncio.Event()) as k,
        kit(tmp_path / "later", 0.5, "new ", "end", **{"streams.when_ahead": when_ahead}) as later,
    ):
        reading = asyncio.create_task(collect(k.client.chat(USER, transport=transport, resumable=True), seen))
        await until(lambda: said(seen) == "".join(WORDS[:10]))
        stored = await k.store.load(k.client.history[0].id, hashlib.sha256(KEY.encode()).digest())
        await later.store.open(replace(stored, entries=()))
        later.store.record(stored.request.id, 0, stored.entries[:4], None, lambda _: None)
        await asyncio.sleep(0.05)
        assert await later.app[STREAMS].resume_unfinished() == 1
        k.cable.lead_to(later.node)
        events = await reading
    assert said(events) == "".join(WORDS[:4]) + "new end"
    assert [type(event) for event in events if not isinstance(event, TextDelta)] == [TextRewind, Done]


HELLO = text("a").replace(b'"id"', b'"outpost":{"seq":0},"id"')


@pytest.mark.parametrize(
    ("handler", "kind", "match"),
    [
        pytest.param(script(HELLO, END), BrokenStream, "without saying why", id="no finish reason"),
        pytest.param(script(HELLO, b"data: {oops\n\n"), BrokenStream, "not a chat chunk", id="broken JSON"),
        pytest.param(script(HELLO, LAST), BrokenStream, "before the answer was complete", id="an end without [DONE]"),
    ],
)
async def test_another_server_that_numbers_nothing_is_not_come_back_to(
    handler: Any, kind: type[Exception], match: str
) -> None:
    seen: list[Event] = []
    async with serving(handler) as url, Client(url, patience=QUICK) as client:
        with pytest.raises(kind, match=match):
            await collect(client.chat(USER, resumable=True), seen)
    assert said(seen) == "a"


async def test_a_proxy_whose_node_is_away_is_waited_for_but_not_for_ever() -> None:
    async with (
        serving(refuse(502, b"<html>bad gateway")) as url,
        Client(url, patience=Patience(first_s=0.01, give_up_s=0.2)) as client,
    ):
        with pytest.raises(ClientError, match="answered 502"):
            await collect(client.chat(USER, resumable=True))
        assert len(client.history) >= 3


async def test_where_no_websocket_is_spoken_it_is_said() -> None:
    async with serving(refuse(200, b"hello")) as url, Client(url) as client:
        with pytest.raises(NodeError, match="refused a WebSocket with 200"):
            await collect(client.chat(USER, transport="ws"))
    async with serving(refuse(503, b"", {"Retry-After": "4"})) as url, Client(url) as client:
        with pytest.raises(errors.Unavailable) as caught:
            await collect(client.chat(USER, transport="ws"))
    assert caught.value.retry_after == 4


async def test_a_websocket_that_speaks_nonsense() -> None:
    async def handler(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str("nonsense")
        await socket.receive()
        return socket

    async with serving(handler) as url, Client(url) as client:
        with pytest.raises(BrokenStream, match="that is none"):
            await collect(client.chat(USER, transport="ws"))


async def test_a_playout_buffer_changes_when_and_not_what(tmp_path: Path) -> None:
    async with kit(tmp_path, *WORDS) as k:
        playout = Playout()
        for resumable in (False, True):
            events = await collect(k.client.chat(USER, resumable=resumable, playout=playout))
            assert said(events) == WHOLE
            assert done(events).finish_reason == "stop"


async def test_an_id_that_is_none_is_not_asked_for() -> None:
    async with Client("http://127.0.0.1:1") as client:
        for id, start in (("../metrics", 0), ("", 0), ("chatcmpl-1", -1), ("é", 0)):
            with pytest.raises(errors.InvalidRequest):
                await collect(client.stream(id, start))
