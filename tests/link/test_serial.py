"""Lines on real ptys, with a noisy wire between them."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from node.errors import SettingsError
from node.link.events import Came, Ended, Event
from node.link.serial import Mode, SerialLine
from tests.support.serial_wire import Noise, Wire


class End:
    def __init__(self, device: str, mode: Mode, *, client: bool) -> None:
        self.events: list[Event] = []
        self.changed = asyncio.Event()
        self.serial = SerialLine(device, 115200, mode, client=client, on_event=self._note)

    def _note(self, event: Event) -> None:
        self.events.append(event)
        self.changed.set()

    async def until(self, event: Event) -> None:
        async with asyncio.timeout(30):
            while event not in self.events:
                self.changed.clear()
                await self.changed.wait()

    @property
    def text(self) -> bytes:
        return b"".join(event.chunk for event in self.events if isinstance(event, Came))


@asynccontextmanager
async def ends(mode: Mode, noise: Noise = lambda data: data) -> AsyncIterator[tuple[End, End]]:
    wire = Wire(noise)
    wire.open()
    node, client = End(wire.devices[0], mode, client=False), End(wire.devices[1], mode, client=True)
    await node.serial.open()
    await client.serial.open()
    try:
        yield node, client
    finally:
        node.serial.close()
        client.serial.close()
        node.serial.close()
        wire.close()


async def talk(node: End, client: End, words: list[bytes]) -> None:
    now = asyncio.get_running_loop().time
    client.serial.line.open(9, now())
    client.serial.line.send(9, b"question", now())
    client.serial.line.finish(9, now())
    client.serial.wake()
    await node.until(Ended(9, True))
    assert node.text == b"question"
    for word in words:
        node.serial.line.send(9, word, now())
    node.serial.line.finish(9, now())
    node.serial.wake()
    await client.until(Ended(9, True))
    assert client.text == b"".join(words)


WORDS = [b"word%d " % i for i in range(60)]


@pytest.mark.parametrize("mode", ["wired", "radio"])
async def test_a_clean_line(mode: Mode) -> None:
    async with ends(mode) as (node, client):
        await talk(node, client, WORDS)
        assert client.serial.broken == node.serial.broken == 0


@pytest.mark.parametrize("mode", ["wired", "radio"])
async def test_bits_flip_and_bytes_vanish(mode: Mode) -> None:
    rng = random.Random(4)

    def noise(data: bytes) -> bytes:
        bent = bytearray(data)
        for place in range(len(bent)):
            if rng.random() < 0.002:
                bent[place] ^= 1 << rng.randrange(8)
        if len(bent) > 1 and rng.random() < 0.02:
            del bent[rng.randrange(len(bent))]
        return bytes(bent)

    async with ends(mode, noise) as (node, client):
        await talk(node, client, WORDS)


async def test_radio_mends_what_a_wire_would_lose() -> None:
    rng, flips = random.Random(4), 0

    def noise(data: bytes) -> bytes:
        nonlocal flips
        bent = bytearray(data)
        for place in range(len(bent)):
            if rng.random() < 0.01:
                bent[place] ^= 0xFF
                flips += 1
        return bytes(bent)

    async with ends("radio", noise) as (node, client):
        await talk(node, client, WORDS)
        assert flips > 20
        assert client.serial.broken + node.serial.broken <= 2


async def test_a_device_that_is_none_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"Cannot use .*/pyproject.toml as a serial line"):
        await End(str(Path(__file__).parents[2] / "pyproject.toml"), "wired", client=True).serial.open()
    with pytest.raises(SettingsError, match="no-such-tty"):
        await End("/dev/no-such-tty", "wired", client=True).serial.open()


async def test_a_strange_speed_is_refused() -> None:
    wire = Wire(lambda data: data)
    line = SerialLine(wire.devices[0], 12345, "wired", client=True, on_event=lambda event: None)
    with pytest.raises(SettingsError, match="12345"):
        await line.open()
    wire.close()


async def test_a_device_that_goes_away_closes_the_line(caplog: pytest.LogCaptureFixture) -> None:
    wire = Wire(lambda data: data)
    end = End(wire.devices[0], "wired", client=False)
    await end.serial.open()
    for fd in (wire.masters[0], wire.slaves[0]):
        os.close(fd)
    wire.masters.pop(0)
    wire.slaves.pop(0)
    async with asyncio.timeout(30):
        while not end.serial.line.closed:  # noqa: ASYNC110  # no event tells
            await asyncio.sleep(0.01)
    assert any("serial line" in record.message for record in caplog.records)
    wire.close()
