"""A client and a node on a line of ptys."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from node.answer import Done, TextDelta
from node.chunks import BrokenStream
from node.client import Client
from node.errors import InvalidRequest, SettingsError
from node.link.serial import Mode
from node.runtime import Node
from node.serialclient import SerialClient
from tests.support.serial_wire import Noise, Wire

Start = Callable[..., Awaitable[Node]]
ASK = [{"role": "user", "content": "Say something long about rivers, please."}]


@asynccontextmanager
async def joined(start_node: Start, mode: Mode, noise: Noise = lambda data: data) -> AsyncIterator[tuple[str, str]]:
    """A node on one end of a wire; gives its URL and the device at the other end."""
    wire = Wire(noise)
    wire.open()
    try:
        node = await start_node(engine_kind="echo", link_serial=wire.devices[0], link_serial_mode=mode)
        yield node.url, wire.devices[1]
        await node.stop(grace_s=0)
    finally:
        wire.close()


async def text_of(client: Client | SerialClient, **more: object) -> tuple[str, Done]:
    text = ""
    async with asyncio.timeout(60):
        async for event in client.chat(ASK, seed=1, **more):  # type: ignore[arg-type]
            if isinstance(event, TextDelta):
                text += event.text
            elif isinstance(event, Done):
                return text, event
    raise AssertionError("no end")


@pytest.mark.parametrize("mode", ["wired", "radio"])
async def test_the_same_text_as_over_http(start_node: Start, mode: Mode) -> None:
    rng = random.Random(2)

    def noise(data: bytes) -> bytes:
        return bytes(byte ^ (1 if rng.random() < 0.0005 else 0) for byte in data)

    async with joined(start_node, mode, noise) as (url, device):
        async with Client(url) as http:
            expected, plain = await text_of(http, max_tokens=60)
        async with SerialClient(device, mode=mode) as client:
            text, done = await text_of(client, max_tokens=60)
            assert text == expected
            assert done.usage
            assert plain.usage
            assert done.usage.prompt_tokens == plain.usage.prompt_tokens
            assert done.usage.completion_tokens == plain.usage.completion_tokens
            assert (await text_of(client, max_tokens=5))[0]


async def test_errors_come_as_over_http(start_node: Start) -> None:
    async with joined(start_node, "wired") as (_, device), SerialClient(device) as client:
        with pytest.raises(InvalidRequest):
            await text_of(client, temperature=-1.0)


async def test_a_line_without_a_node_is_told() -> None:
    wire = Wire(lambda data: b"")
    wire.open()
    async with SerialClient(wire.devices[1], silence_s=0.2) as client:
        with pytest.raises(BrokenStream, match=r"0\.2 seconds"):
            await text_of(client)
    wire.close()


async def test_a_node_refuses_a_device_that_is_none(start_node: Start) -> None:
    with pytest.raises(SettingsError, match="no-such-tty"):
        await start_node(engine_kind="echo", link_serial="/dev/no-such-tty")
