"""Generations on a WebSocket: many at once, interrupts, lost connections, coming back, retries and refusals."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from node.errors import EngineFailed, Overloaded
from node.layers import load
from node.server.app import create_app
from node.store.db import Database
from node.store.streams import StreamStore
from tests.server.talk import Talk, talking
from tests.server.wire import USER, events, text_of, until
from tests.support.service import ScriptedSource, running_app, scripted

KEYS = ("k" * 16, "j" * 16)
WHOLE = "one two three four"


class Node:
    """A node with a store and two keys over a scripted service that waits at `gate` in the middle of "three"."""

    def __init__(self, url: str, source: ScriptedSource, gate: asyncio.Event, app: Any) -> None:
        self.url, self.source, self.gate, self.app = url, source, gate, app

    async def sse(self, path: str, key: str = KEYS[0], body: Any = None, **headers: str) -> tuple[Any, bytes]:
        headers = {"Authorization": f"Bearer {key}", **headers}
        async with aiohttp.ClientSession(headers=headers) as client:
            asked = client.get(self.url + path) if body is None else client.post(self.url + path, data=body)
            async with asked as response:
                return response.headers.get("Outpost-Stream"), await response.read()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    database = Database(tmp_path / "node.db")
    await database.open()
    store, gate = StreamStore(database, 1 << 24, 1000), asyncio.Event()
    service, source = scripted("one ", "two ", "thr", gate, "ee ", "four", slots=8)
    app = create_app(load(environment={}, flags={"server.api_keys": ",".join(KEYS)}), service, store)
    async with running_app(app) as url:
        yield Node(url, source, gate, app)
    await database.close()


async def begun(talk: Talk, ref: Any = "a", *, resumable: bool = True, **more: Any) -> str:
    """A generation of which three entries came; its id."""
    await talk.ask(ref, resumable=resumable, **more)
    id: str = (await talk.until("accepted", ref))["stream"]
    while (await talk.until("token", ref))["seq"] < 2:
        pass
    return id


async def test_eight_generations_share_a_connection() -> None:
    script = [part for number in range(40) for part in (f"{number} é🌍 ", 0)]
    service, _ = scripted(*script, slots=8)
    async with running_app(create_app(load(environment={}), service)) as url, talking(url, compress=15) as talk:
        for ref in range(8):
            await talk.ask(ref, route="chat" if ref % 2 else "text")
        for _ in range(8):
            assert (await talk.until("finish"))["seq"] == 39
        order = [ref for ref in talk.said if ref is not None]
        assert sorted(order) == list(range(8))
        for ref in range(8):
            assert talk.text(ref) == "".join(part for part in script if isinstance(part, str))
            assert talk.said[ref][0]["type"] == "accepted"


async def test_a_character_is_never_cut() -> None:
    service, _ = scripted(*(bytes([byte]) for byte in "🌍é€".encode()))
    async with running_app(create_app(load(environment={}), service)) as url, talking(url) as talk:
        await talk.ask("a")
        assert (await talk.end("a"))["seq"] == 8
        assert [told["delta"]["content"] for told in talk.tokens("a")] == ["🌍", "é", "€"]


async def test_an_interrupt_says_how_far_it_got(node: Node) -> None:
    async with talking(node.url, key=KEYS[0]) as talk:
        id = await begun(talk, resumable=False)
        await talk.send("interrupt", id="a")
        assert await talk.end("a") == {"type": "interrupted", "id": "a", "seq": 2}
        assert node.source.cancelled == [id]
        assert talk.text("a") == "one two thr"
        await talk.send("interrupt", id="a")
        told = await talk.next()
        assert told["id"] is None, "it ends nothing"
        assert told["error"]["param"] == "id"


async def test_an_interrupt_reaches_what_is_queued_or_not_even_planned(node: Node) -> None:
    async with talking(node.url, key=KEYS[0]) as talk:
        for ref in range(8):
            await talk.ask(ref)
        await until(lambda: len(node.source.submitted) == 8)
        await talk.ask(8)
        await until(lambda: len(node.source.submitted) == 9)
        await talk.send("interrupt", id=8)
        assert (await talk.end(8))["seq"] == -1
        await talk.ask("new")
        await talk.send("interrupt", id="new")
        assert await talk.end("new") == {"type": "interrupted", "id": "new", "seq": -1}


async def test_a_lost_connection_stops_what_nobody_can_resume(node: Node) -> None:
    async with talking(node.url, key=KEYS[0]) as talk:
        kept = await begun(talk, "kept", resumable=True)
        lost = await begun(talk, "lost", resumable=False)
        assert talk.socket._response.connection is not None
        talk.socket._response.connection.transport.abort()
        await until(lambda: node.source.cancelled == [lost], 1)
    node.gate.set()
    async with talking(node.url, key=KEYS[0]) as talk:
        await talk.send("resume", id=1, stream=kept, **{"from": 3})
        assert (await talk.until("accepted", 1))["stream"] == kept
        assert (await talk.end(1))["seq"] == 4
        assert talk.text(1) == "ee four"
        await talk.send("resume", id=1, stream=lost, **{"from": 3})
        assert (await talk.end(1))["status"] == 404


async def test_a_goodbye_stops_them_too(node: Node) -> None:
    async with talking(node.url, key=KEYS[0]) as talk:
        lost = await begun(talk, resumable=False)
    await until(lambda: node.source.cancelled == [lost], 1)


async def test_what_was_begun_here_is_read_there(node: Node) -> None:
    async with talking(node.url, key=KEYS[0]) as talk:
        id = await begun(talk)
    reading = asyncio.create_task(node.sse(f"/v1/streams/{id}?from=1"))
    await asyncio.sleep(0.05)
    node.gate.set()
    _, body = await reading
    assert text_of(events(body)) == "two three four"
    async with talking(node.url, key=KEYS[0]) as talk:
        id, _ = await node.sse(
            "/v1/chat/completions", body=json.dumps({"messages": USER}), **{"Outpost-Resumable": "1"}
        )
        await talk.send("resume", id="b", stream=id)
        assert (await talk.end("b"))["reason"] == "stop"
        assert talk.text("b") == WHOLE


async def test_a_generation_cut_at_random_is_one_text(node: Node) -> None:
    chance = random.Random(4)
    async with talking(node.url, key=KEYS[0]) as talk:
        id = await begun(talk)
    asyncio.get_running_loop().call_later(0.05, node.gate.set)
    text, seq = "one two thr"[: chance.choice((4, 8, 11))], 0
    seq = {4: 0, 8: 1, 11: 2}[len(text)]
    while True:
        async with talking(node.url, key=KEYS[0]) as talk:
            await talk.send("resume", id="a", stream=id, **{"from": seq + 1})
            told = await talk.next()
            for _ in range(chance.randint(1, 2)):
                told = await talk.next()
                if told["type"] == "finish":
                    assert text == WHOLE
                    return
                assert told["seq"] > seq
                text, seq = text + told["delta"]["content"], told["seq"]


async def test_what_cannot_be_resumed_is_said(node: Node) -> None:
    async with talking(node.url, key=KEYS[0]) as talk:
        id = await begun(talk)
        node.gate.set()
        await talk.end("a")
        for start, status in ((5, None), (6, 409), (999_999_999, 409)):
            await talk.send("resume", id="b", stream=id, **{"from": start})
            told = await talk.end("b")
            assert told.get("status") == status, told
    async with talking(node.url, key=KEYS[1]) as talk:
        await talk.send("resume", id="b", stream=id)
        assert (await talk.end("b"))["status"] == 403


async def test_a_reader_who_is_ahead_is_told_to_go_back(tmp_path: Path) -> None:
    gate = asyncio.Event()
    service, _ = scripted("one ", "two", gate, " three")
    settings = load(environment={}, flags={"streams.when_ahead": "rewind"})
    async with running_app(create_app(settings, service)) as url, talking(url) as talk:
        id = await begun_at(talk, 1)
        await talk.send("resume", id="b", stream=id, **{"from": 9})
        assert await talk.until("rewind") == {"type": "rewind", "id": "b", "seq": 1}
        gate.set()
        await talk.end("b")
        assert talk.text("b") == " three"


async def begun_at(talk: Talk, seq: int) -> str:
    await talk.ask("a", resumable=True)
    id: str = (await talk.until("accepted", "a"))["stream"]
    while (await talk.until("token", "a"))["seq"] < seq:
        pass
    return id


async def test_the_same_key_joins_over_both_transports(node: Node) -> None:
    body = json.dumps({"messages": USER})
    async with talking(node.url, key=KEYS[0]) as talk:
        message = f'{{"type":"request","id":"a","route":"chat","key":"once","body":{body}}}'
        await talk.socket.send_str(message)
        await talk.until("token", "a")
        joined = asyncio.create_task(node.sse("/v1/chat/completions", body=body, **{"Idempotency-Key": "once"}))
        await talk.socket.send_str(message.replace('"a"', '"b"'))
        await talk.until("token", "b")
        node.gate.set()
        await talk.end("b")
        assert talk.text("b") == WHOLE
        assert json.loads((await joined)[1])["choices"][0]["message"]["content"] == WHOLE
        assert len(node.source.submitted) == 1
        await talk.ask("c", key="once", seed=3)
        assert (await talk.end("c"))["status"] == 400
        await talk.ask("c", key="x" * 300)
        assert (await talk.end("c"))["status"] == 400


async def test_a_name_in_use_is_refused_and_its_generation_goes_on(node: Node) -> None:
    async with talking(node.url, key=KEYS[0]) as talk:
        await begun(talk)
        await talk.ask("a")
        told = await talk.until("error")
        assert told["id"] is None
        assert told["error"]["param"] == "id"
        await talk.send("request", id="a", route="x", body={})
        assert (await talk.until("error"))["id"] is None, "a malformed message with a name in use ends nothing either"
        node.gate.set()
        assert (await talk.end("a"))["type"] == "finish"


async def test_refusals_are_those_of_http() -> None:
    gate = asyncio.Event()
    service, source = scripted("x", gate)
    flags = {"websocket.max_generations": "2", "streams.resumable": "never"}
    async with running_app(create_app(load(environment={}, flags=flags), service)) as url, talking(url) as talk:
        source.refusal = Overloaded("The queue is full.", retry_after=7)
        await talk.ask("a")
        told = await talk.end("a")
        assert (told["status"], told["retry_after"]) == (429, 7)
        assert told["error"]["code"] == "queue_full"
        source.refusal = None
        for more, param in (
            ({"n": 2}, "n"),
            ({"max_tokens": 10**6}, "messages"),
            ({"temperature": "hot"}, "temperature"),
        ):
            await talk.ask("a", **more)
            assert (await talk.end("a"))["error"]["param"] == param
        await talk.ask("a", resumable=True)
        assert (await talk.end("a"))["error"]["param"] == "resumable"
        for ref in "ab":
            await talk.ask(ref)
            await talk.until("token", ref)
        await talk.ask("c")
        assert (await talk.end("c"))["status"] == 429
        gate.set()


async def test_a_broken_engine_is_an_error_after_what_came() -> None:
    service, _ = scripted("half ", EngineFailed("It broke."))
    async with running_app(create_app(load(environment={}), service)) as url, talking(url) as talk:
        await talk.ask("a")
        told = await talk.end("a")
        assert told["status"] == 500
        assert told["error"]["code"] == "engine_failed"
        assert talk.text("a") == "half "


async def test_what_another_reader_stops_is_an_error_here(node: Node) -> None:
    async with talking(node.url, key=KEYS[0]) as talk:
        id = await begun(talk)
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEYS[0]}"}) as client,
            client.delete(f"{node.url}/v1/streams/{id}") as response,
        ):
            assert response.status == 200
        assert (await talk.end("a"))["type"] == "error"


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "sky"}}\n</tool_call>'


async def test_calls_and_logprobs_come_whole() -> None:
    service, _ = scripted("so ", CALL)
    async with running_app(create_app(load(environment={}), service)) as url, talking(url) as talk:
        await talk.send("hello", level=1)
        await talk.ask("a", tools=[TOOL])
        end = await talk.end("a")
        assert end["reason"] == "tool_calls"
        calls = [call for told in talk.tokens("a") for call in told["delta"].get("tool_calls", [])]
        assert calls[0]["function"]["name"] == "look", "what only level 3 can say stays at 3"
        assert json.loads("".join(call["function"]["arguments"] for call in calls)) == {"at": "sky"}
        numbers = [told["seq"] for told in talk.tokens("a")]
        assert len(numbers) == len(set(numbers)), "one message a number, or a resume would tell half of it twice"
    service, _ = scripted("x", "y")
    async with running_app(create_app(load(environment={}), service)) as url, talking(url) as talk:
        await talk.ask("a", logprobs=True, top_logprobs=1)
        await talk.end("a")
        assert talk.tokens("a")[0]["logprobs"]["content"][0]["token"] == "x"


async def test_requests_are_counted_by_how_they_ended(node: Node) -> None:
    async with talking(node.url, key=KEYS[0]) as talk:
        await talk.ask("bad", n=2)
        await talk.end("bad")
        await begun(talk, "lost", resumable=False)
    await until(lambda: node.source.cancelled, 1)
    node.gate.set()
    async with talking(node.url, key=KEYS[0]) as talk:
        await talk.ask("good")
        await talk.end("good")
    _, body = await node.sse("/metrics")
    for status in (200, 400, 499):
        assert f'llm_request_count{{model="scripted",status="{status}"}} 1.0' in body.decode()
