"""A slot's request and reply, at the level of the link; what clients see of it is in tests/test_linkclient.py."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest

from node.link.connection import Connection
from node.link.events import Came, Ended, Event
from node.link.packet import VERSION
from node.link.udp import UdpLinks
from node.link.words import Words, cut
from node.runtime import Node

Start = Callable[..., Awaitable[Node]]
BODY = {"messages": [{"role": "user", "content": "hello out there, how is it going?"}], "max_tokens": 30}


class Talk:
    """A bare link to a node."""

    def __init__(self, told: dict[str, object]) -> None:
        self.events: list[Event] = []
        self.changed = asyncio.Event()
        self.udp = UdpLinks(self._note, lambda link: None)
        self.port = int(str(told["port"]))
        secret, number = base64.b64decode(str(told["secret"])), int(str(told["link"]))
        self.now = asyncio.get_running_loop().time
        self.link = Connection(secret, number, client=True, address="node", entropy=os.urandom, now=self.now())

    def _note(self, link: Connection, event: Event) -> None:
        self.events.append(event)
        self.changed.set()

    def ask(self, slot: int, request: bytes) -> None:
        self.link.open(slot)
        for chunk in cut(request):
            self.link.send(slot, chunk, self.now())
        self.link.finish(slot, self.now())
        self.udp.wake(self.link)

    async def reply(self, slot: int) -> list[str | dict[str, object]]:
        """The whole reply: texts and messages."""
        async with asyncio.timeout(20):
            while not any(isinstance(event, Ended) and event.slot == slot for event in self.events):
                self.changed.clear()
                await self.changed.wait()
        words, out = Words(), []
        for event in self.events:
            if isinstance(event, Came) and event.slot == slot and (one := words.take(event.chunk)) is not None:
                out.append(one if isinstance(one, str) else json.loads(one))
        return out


@asynccontextmanager
async def talking(node: Node) -> AsyncIterator[Talk]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{node.url}/v1/link", json={"versions": [VERSION]}) as response,
    ):
        talk = Talk(await response.json())
    await talk.udp.open("127.0.0.1", talk.port, peer=True)
    talk.udp.add(talk.link)
    try:
        yield talk
    finally:
        talk.udp.close()


def request(slot: int, **more: object) -> bytes:
    return json.dumps({"type": "request", "id": slot, "route": "chat", "body": BODY, **more}).encode()


async def test_text_travels_bare_between_two_messages(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True)
    async with talking(node) as talk:
        talk.ask(0, request(0))
        first, *texts, last = await talk.reply(0)
        assert isinstance(first, dict)
        assert isinstance(last, dict)
        assert (first["type"], first["id"], last["type"]) == ("accepted", 0, "finish")
        assert all(isinstance(text, str) for text in texts)
        assert last["seq"] == len(texts) - 1
        usage = last["usage"]
        assert isinstance(usage, dict)
        assert usage["completion_tokens"] == 30


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b'{"type":"ping"}', 400),
        (request(7), 400),
        (json.dumps({"type": "resume", "id": 0, "stream": "none"}).encode(), 404),
        (request(0, body={"messages": []}), 400),
        (request(0, key="x" * 5000), 400),
    ],
)
async def test_a_wrong_request_is_answered_in_its_slot(start_node: Start, sent: bytes, code: int) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True)
    async with talking(node) as talk:
        talk.ask(0, sent)
        (error,) = await talk.reply(0)
        assert isinstance(error, dict)
        assert (error["type"], error["status"]) == ("error", code)
        talk.ask(1, request(1))
        *_, last = await talk.reply(1)
        assert isinstance(last, dict)
        assert last["type"] == "finish"


async def test_a_request_too_large_is_refused_before_it_is_whole(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True, server_max_body_bytes=2000)
    async with talking(node) as talk:
        talk.ask(0, b"x" * 30_000)
        (error,) = await talk.reply(0)
        assert isinstance(error, dict)
        assert error["status"] == 413


async def test_requests_that_do_not_end_are_bounded_together(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True, server_max_body_bytes=2000)
    async with talking(node) as talk:
        for slot in range(3):
            talk.link.open(slot)
            talk.link.send(slot, b"x" * 900, talk.now())
        talk.udp.wake(talk.link)
        (error,) = await talk.reply(2)
        assert isinstance(error, dict)
        assert error["status"] == 413


async def test_requests_that_came_and_those_that_were_refused_leave_room_for_others(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True, server_max_body_bytes=2000)
    body = {**BODY, "messages": [{"role": "user", "content": "x" * 900}]}
    async with talking(node) as talk:
        for slot in range(6):
            talk.ask(slot, b"x" * 30_000 if slot == 3 else request(slot, body=body))
            *_, last = await talk.reply(slot)
            assert isinstance(last, dict)
            assert last["type"] == ("error" if slot == 3 else "finish"), last


async def test_a_stop_is_answered_by_interrupted(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True)
    async with talking(node) as talk:
        body = {**BODY, "max_tokens": 900, "messages": [{"role": "user", "content": "long " * 900}]}
        talk.ask(0, request(0, body=body))
        async with asyncio.timeout(10):
            while len(talk.events) < 5:
                talk.changed.clear()
                await talk.changed.wait()
        talk.link.stop(0, talk.now())
        talk.udp.wake(talk.link)
        *_, last = await talk.reply(0)
        assert isinstance(last, dict)
        assert last["type"] in ("interrupted", "finish")
        talk.link.stop(0, talk.now())
        talk.ask(1, request(1))
        assert await talk.reply(1)
