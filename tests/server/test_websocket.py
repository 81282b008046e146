"""A connection's life on /v1/ws: the handshake, malformed input, heartbeats, slow readers and the goodbye."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest
from aiohttp import WSMsgType
from hypothesis import given, settings
from hypothesis import strategies as st

from node.generation import Load
from node.layers import load
from node.server.app import create_app
from tests.server.talk import Talk, packed, talking
from tests.server.wire import until
from tests.support.service import ScriptedService, ScriptedSource, Step, running_app, scripted

KEY = "a key / with + more?"
JSON = "outpost.v1"


class Node:
    """A node over a scripted service."""

    def __init__(self, url: str, source: ScriptedSource, service: Any) -> None:
        self.url, self.source, self.service = url, source, service

    async def metric(self, name: str) -> float:
        async with aiohttp.ClientSession() as client, client.get(f"{self.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and not line.startswith("#"))

    async def in_state(self, state: str) -> float:
        return await self.metric(f'llm_websocket_connections{{state="{state}"}}')


@contextlib.asynccontextmanager
async def serving(*script: Step, slots: int = 2, context: int = 4096, **flags: str) -> AsyncIterator[Node]:
    service, source = scripted(*script, slots=slots, context=context)
    names = {name.replace("__", "."): value for name, value in flags.items()}
    async with running_app(create_app(load(environment={}, flags=names), service)) as url:
        yield Node(url, source, service)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with serving("Hello", " wor", "ld", ".") as node:
        yield node


@pytest.fixture
async def locked() -> AsyncIterator[Node]:
    origins = "https://good.example"
    async with serving("x", server__api_keys=KEY, server__allowed_origins=origins) as node:
        yield node


async def test_a_generation_comes_in_numbered_messages(node: Node) -> None:
    async with talking(node.url) as talk:
        await talk.ask("a", max_tokens=9)
        end = await talk.end("a")
        accepted, *tokens, _ = talk.said["a"]
        assert accepted["stream"].startswith("chatcmpl-")
        assert accepted["resumable"] is False
        assert [token["seq"] for token in tokens] == [0, 1, 2, 3]
        assert tokens[0] == {"type": "token", "id": "a", "seq": 0, "delta": {"content": "Hello"}}
        assert talk.text("a") == "Hello world."
        assert end["reason"] == "stop"
        assert end["seq"] == 3
        assert end["usage"]["completion_tokens"] == 4
        await talk.ask("a", route="text")
        assert (await talk.end("a"))["reason"] == "stop", "a name is free again after the end"
        assert talk.said["a"][-2]["delta"] == {"text": "."}
        await talk.send("ping", t="now")
        assert await talk.next() == {"type": "pong", "t": "now"}


async def test_the_key_comes_in_the_header_or_as_a_subprotocol(locked: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with talking(locked.url, key=KEY) as talk:
        await talk.send("ping")
        await talk.next()
        assert talk.socket.protocol is None
    for protocols in ((JSON, packed(KEY)), (packed(KEY), JSON)):
        async with talking(locked.url, *protocols) as talk:
            assert talk.socket.protocol == JSON, "never the key"
            await talk.ask("a")
            assert (await talk.end("a"))["type"] == "finish"
    for protocols in ((), (JSON,), (JSON, packed(KEY + "x")), (JSON, "outpost-key.%%%"), (JSON, "outpost-key.w_8")):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with talking(locked.url, *protocols):
                pass
        assert refused.value.status == 401
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with talking(locked.url, packed(KEY)):
            pass
    assert refused.value.status == 400, "there is nothing to select but the key"
    assert packed(KEY) not in caplog.text
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    ("origin", "status"),
    [("https://good.example", 101), ("own", 101), ("https://evil.example", 403), ("null", 403), ("http://[", 403)],
)
async def test_only_allowed_pages_may_connect(locked: Node, origin: str, status: int) -> None:
    headers = {"Origin": locked.url if origin == "own" else origin}
    try:
        async with talking(locked.url, key=KEY, headers=headers):
            got = 101
    except aiohttp.WSServerHandshakeError as error:
        got = error.status
    assert got == status


async def test_what_is_no_handshake_gets_an_http_error(node: Node) -> None:
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    for headers in ({}, upgrade, {**upgrade, "Sec-WebSocket-Protocol": "chat"}):
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"{node.url}/v1/ws", headers=headers) as response,
        ):
            assert response.status == 400
            assert (await response.json())["error"]["message"]


async def test_connections_are_counted_and_bounded() -> None:
    gate = asyncio.Event()
    async with serving("x", gate, websocket__max_connections="2") as node:
        async with talking(node.url) as talk, talking(node.url):
            await talk.ask("a")
            await talk.until("token")
            assert await node.in_state("open") == 1
            assert await node.in_state("idle") == 1
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with talking(node.url):
                    pass
            assert refused.value.status == 503
            gate.set()
            await talk.end("a")
            assert await node.in_state("idle") == 2
        async with talking(node.url):
            pass


WRONG = [
    "",
    "{",
    "[]",
    '{"type":"what"}',
    '{"type":"token","id":"a","seq":0,"delta":{}}',
    '{"type":"request","id":"a","route":"chat"}',
    '{"type":"request","id":"a","route":"chat","body":{"messages":[]}}',
    '{"type":"request","id":"a","route":"chat","body":7}',
    '{"type":"request","id":"a","route":"chat","body":{"messages":[{"role":"user","content":"x"}],"n":2}}',
    '{"type":"resume","id":"a","stream":"chatcmpl-none"}',
    '{"type":"resume","id":"a","stream":"../etc"}',
    '{"type":"interrupt","id":"a"}',
    "[" * 50_000,
    b"",
    b"\xc1\xff",
]


@pytest.mark.parametrize("data", WRONG, ids=range(len(WRONG)))
async def test_a_wrong_message_gets_an_error_and_the_connection_lives(node: Node, data: str | bytes) -> None:
    async with talking(node.url) as talk:
        await (talk.socket.send_str(data) if isinstance(data, str) else talk.socket.send_bytes(data))
        told = await talk.until("error")
        assert told["error"]["message"]
        assert 400 <= told["status"] < 500
        await talk.ask("a")
        assert (await talk.end("a"))["type"] == "finish"


pieces = st.one_of(
    st.text(max_size=40),
    st.binary(max_size=40),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["request", "resume", "interrupt", "ping", "hello", "x"])},
        optional={
            "id": st.sampled_from(["a", "b", 1, -1, None, ""]),
            "route": st.sampled_from(["chat", "text", "x"]),
            "body": st.sampled_from([{"messages": [{"role": "user", "content": "hi"}]}, {"prompt": "x"}, {}, 1]),
            "stream": st.sampled_from(["x", "", 1]),
            "from": st.sampled_from([0, 1, -1, "x"]),
            "t": st.integers() | st.text(max_size=3),
            "level": st.integers(0, 4),
        },
    ),
    st.lists(st.one_of(st.integers(0, 30), st.text(max_size=3), st.none()), max_size=5).map(msgspec.msgpack.encode),
)


@settings(max_examples=40)
@given(st.lists(pieces, max_size=8))
def test_whatever_is_sent_the_connection_lives(messages: list[Any]) -> None:
    async def send_all() -> None:
        async with serving("Hi") as node:
            async with talking(node.url) as talk:
                for message in messages:
                    if isinstance(message, bytes):
                        await talk.socket.send_bytes(message)
                    else:
                        await talk.socket.send_str(message if isinstance(message, str) else json.dumps(message))
                await talk.send("hello", binary=False, level=3)
                await talk.send("ping", t="still here")
                while (told := await talk.socket.receive(timeout=60)).type in (WSMsgType.TEXT, WSMsgType.BINARY):
                    if told.type is WSMsgType.TEXT and json.loads(told.data) == {"type": "pong", "t": "still here"}:
                        return
                pytest.fail(f"the connection did not live: {told}")

    asyncio.run(send_all())


async def test_too_big_and_not_text_close_the_connection() -> None:
    async with serving("x", websocket__max_message_bytes="2048") as node:
        for compress in (0, 15):
            async with talking(node.url, compress=compress) as talk:
                await talk.socket.send_str(json.dumps({"type": "ping", "t": "x" * 3000}))
                assert await talk.closing() == 1009
        async with talking(node.url) as talk:
            await talk.socket.send_frame(b"\xff\xfe", WSMsgType.TEXT)
            assert await talk.closing() == 1007
        async with talking(node.url) as talk:
            await talk.ask("a", stop=["y" * 100] * 4)
            assert (await talk.end("a"))["type"] == "finish"


async def test_a_body_has_the_limit_that_http_has() -> None:
    async with serving("x", server__max_body_bytes="1024") as node:
        async with talking(node.url) as talk:
            await talk.ask("a", user="x" * 2000)
            assert (await talk.end("a"))["status"] == 413


async def test_deflate_and_binary_are_negotiated(node: Node) -> None:
    async with talking(node.url, "outpost.v1.msgpack", compress=15) as talk:
        assert talk.socket.protocol == "outpost.v1.msgpack"
        assert talk.socket.compress
        body = {"messages": [{"role": "user", "content": "hi"}]}
        await talk.socket.send_bytes(msgspec.msgpack.encode([1, 5, "chat", body]))
        arrays = []
        while not arrays or arrays[-1][0] != 19:
            arrays.append(msgspec.msgpack.decode(await talk.socket.receive_bytes(timeout=60)))
        assert arrays[1:5] == [[18, 5, 0, "Hello"], [18, 5, 1, " wor"], [18, 5, 2, "ld"], [18, 5, 3, "."]]
        await talk.send("hello", binary=False)
        assert (await talk.next())["binary"] is False, "a hello may go back to text"


async def test_hello_changes_what_is_in_force(node: Node) -> None:
    async with talking(node.url) as talk:
        await talk.send("hello")
        terms = await talk.next()
        assert terms == {
            "type": "hello",
            "level": 3,
            "binary": False,
            "heartbeat_s": 15.0,
            "max_message_bytes": 4 << 20,
            "max_generations": 16,
        }
        await talk.send("hello", level=1, heartbeat_s=0.5)
        assert await talk.next() == {**terms, "level": 1, "heartbeat_s": 0.5}
        await talk.ask("a")
        end = await talk.end("a")
        assert "usage" not in end
        assert talk.text("a") == "Hello world."


async def test_silence_is_suspect_and_then_closed() -> None:
    async with serving("x", websocket__heartbeat_s="0.08") as node:
        began = time.monotonic()
        async with talking(node.url, autoping=False) as talk:
            assert (await talk.socket.receive(timeout=30)).type is WSMsgType.PING
            await until_async(lambda: node.in_state("suspect"))
            while (message := await talk.socket.receive(timeout=30)).type is WSMsgType.PING:
                pass
            assert message.type in (WSMsgType.CLOSE, WSMsgType.CLOSED)
            assert talk.socket.close_code == 1011
            assert 0.3 < time.monotonic() - began < 30


async def test_who_answers_pings_lives_and_who_speaks_again_is_trusted_again() -> None:
    async with serving("x", websocket__heartbeat_s="0.08") as node:
        async with talking(node.url) as answering, talking(node.url, autoping=False) as silent:
            reader = asyncio.create_task(answering.socket.receive())
            await until_async(lambda: node.in_state("suspect"))
            await silent.send("hello", heartbeat_s=60)
            await until_async(lambda: node.in_state("idle"), 2)
            assert await node.in_state("suspect") == 0
            await asyncio.sleep(0.3)
            assert not reader.done()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)


async def until_async(condition: Any, wanted: float = 1, seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while await condition() != wanted:  # noqa: ASYNC110  # what is waited for is on the node's side
            await asyncio.sleep(0.01)


class Deaf:
    """A client that reads nothing, on a bare socket with a small buffer."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        self._socket.connect((address.hostname, address.port))
        key = base64.b64encode(os.urandom(16)).decode()
        head = ["GET /v1/ws HTTP/1.1", f"Host: {address.netloc}", "Upgrade: websocket", "Connection: Upgrade"]
        head += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", ""]
        self._socket.sendall("\r\n".join(head).encode())

    def send(self, **message: Any) -> None:
        data, mask = json.dumps(message).encode(), b"\0\0\0\0"
        self._socket.sendall(b"\x81" + bytes([0x80 | 126]) + len(data).to_bytes(2, "big") + mask + data)

    def close(self) -> None:
        self._socket.close()


async def test_a_reader_that_takes_nothing_costs_little_and_slows_nobody() -> None:
    script = [piece for _ in range(1500) for piece in ("x" * 700, 0)]
    async with serving(*script, slots=16, context=1 << 16) as node:
        deaf = await asyncio.to_thread(Deaf, node.url)
        for ref in range(8):
            deaf.send(type="request", id=ref, route="chat", body={"messages": [{"role": "user", "content": "hi"}]})
        async with talking(node.url) as talk:
            await until(lambda: node.source.busy >= 8)
            began = time.monotonic()
            await talk.ask("quick")
            assert (await talk.end("quick"))["type"] == "finish"
            assert len(talk.text("quick")) == 1500 * 700
            assert time.monotonic() - began < 20
            assert await node.metric("llm_readers_lagging") == 1
            assert await node.metric("llm_reader_unread_bytes") < 256 << 10
        deaf.close()
        await until(lambda: node.source.busy == 0)


async def test_who_asks_without_reading_is_not_listened_to_for_ever(node: Node) -> None:
    deaf = await asyncio.to_thread(Deaf, node.url)
    deaf._socket.setblocking(False)
    sent = 0
    with pytest.raises((TimeoutError, BlockingIOError)):  # noqa: PT012  # the point is where it stops
        async with asyncio.timeout(1.5):
            while sent < 64 << 20:
                frame = b"\x81\xfe\x00\x7e\0\0\0\0" + json.dumps({"type": "ping", "t": "x" * 64}).encode().ljust(126)
                await asyncio.get_running_loop().sock_sendall(deaf._socket, frame * 100)
                sent += len(frame) * 100
    assert sent < 32 << 20, "what nobody reads is not answered without end"
    deaf.close()


async def test_the_node_stops_running_answers_finish_and_then_goodbye() -> None:
    gate = asyncio.Event()
    service, _ = scripted("one", gate, "two")
    async with aiohttp.ClientSession() as client:
        async with running_app(create_app(load(environment={}), service)) as url:
            socket = await client.ws_connect(f"{url}/v1/ws")
            talk = Talk(socket)
            await talk.ask("a")
            await talk.until("token")
            service.draining = True
            await talk.ask("b")
            refused = await talk.end("b")
            assert refused["status"] == 503
            assert refused["error"]["code"] == "unavailable"
            assert refused["retry_after"] > 0
            asyncio.get_running_loop().call_later(0.1, gate.set)
            reading = asyncio.create_task(talk.end("a"))
        assert (await reading)["type"] == "finish"
        assert talk.text("a") == "onetwo"
        assert await talk.closing() == 1001
        await socket.close()


async def test_a_reader_that_takes_nothing_does_not_hold_up_the_stop() -> None:
    service, source = scripted(*("x" * 4000 for _ in range(500)))
    async with running_app(create_app(load(environment={}), service)) as url:
        deaf = await asyncio.to_thread(Deaf, url)
        deaf.send(type="request", id=1, route="chat", body={"messages": [{"role": "user", "content": "hi"}]})
        await until(lambda: source.submitted and not source.busy)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    deaf.close()


@dataclass
class ShortOfMemory(ScriptedService):
    """A node with too little memory to say everything."""

    def load(self) -> Load:
        return Load(running=0, waiting=0, kv_used=0, kv_total=1, memory_free=1 << 20)


async def test_the_node_says_less_when_it_must_to_those_who_know_levels() -> None:
    service = ShortOfMemory(ScriptedSource(["a", "b"]))
    async with running_app(create_app(load(environment={}), service)) as url, talking(url) as talk:
        await talk.ask("all")
        assert "usage" in await talk.end("all")
        await talk.send("hello", level=2)
        await talk.ask("less")
        assert "usage" not in await talk.end("less")
        assert talk.text("less") == "ab"
        told = next(told for told in talk.said[None] if told["type"] == "level")
        assert told == {"type": "level", "level": 1, "reason": "little memory"}


def test_the_database_is_not_needed(tmp_path: Path) -> None:
    """Without a store the route is there all the same."""
    app = create_app(load(environment={}), scripted()[0])
    assert "/v1/ws" in [resource.canonical for resource in app.router.resources()]
