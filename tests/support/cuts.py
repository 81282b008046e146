"""Readers whose connections break at random points and who come back: what every answer must survive.

`run` drives many generations through a real node process; between pieces it cuts connections (TCP reset, half-open) and
kills the node outright. Whatever happens, each reader must end with the journal's text, every number exactly once.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp


@dataclass
class Reader:
    """One answer as its reader sees it."""

    body: dict[str, object]
    cuts: list[int]
    id: str = ""
    last: int = -1
    pieces: list[tuple[int, str]] = field(default_factory=list)
    finished: bool = False
    resumes: int = 0

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.pieces)

    def take(self, chunk: dict[str, object]) -> None:
        seq = chunk["outpost"]["seq"]  # type: ignore[index]
        for choice in chunk["choices"]:  # type: ignore[attr-defined]
            if text := choice["delta"].get("content"):
                assert seq > self.last, "a number came twice"
                self.pieces.append((seq, text))
            self.finished = self.finished or choice["finish_reason"] is not None
        self.last = max(self.last, seq)


async def read(reader: Reader, url: Callable[[], str], on_cut: Callable[[Reader], Awaitable[None]]) -> None:
    """Read an answer to its end over however many connections it takes."""
    async with asyncio.timeout(120):
        while not reader.finished:
            try:
                await _connect_once(reader, url(), on_cut)
            except (aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError, TimeoutError):
                await asyncio.sleep(0.05)
            reader.resumes += 1


async def _connect_once(reader: Reader, url: str, on_cut: Callable[[Reader], Awaitable[None]]) -> None:
    timeout = aiohttp.ClientTimeout(sock_connect=2, sock_read=20)
    async with aiohttp.ClientSession(timeout=timeout) as client:
        if reader.id:
            request = client.get(f"{url}/v1/streams/{reader.id}", params={"from": str(reader.last + 1)})
        else:
            headers = {"Outpost-Resumable": "1"}
            request = client.post(f"{url}/v1/chat/completions", json=reader.body, headers=headers)
        async with request as response:
            assert response.status in (200, 503), await response.text()
            if response.status == 503:
                await asyncio.sleep(0.05)
                return
            reader.id = response.headers["Outpost-Stream"]
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    return
                reader.take(chunk)
                if reader.finished:
                    return
                if reader.cuts and reader.last >= reader.cuts[0]:
                    reader.cuts.pop(0)
                    _reset(response)
                    await on_cut(reader)
                    return


def _reset(response: aiohttp.ClientResponse) -> None:
    """End the connection with a TCP reset, as a lost route does."""
    connection = response.connection
    transport = connection.transport if connection else None
    if transport is not None:
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


def plan(count: int, tokens: int, seed: int) -> list[Reader]:
    """Readers of `tokens` tokens each, to be cut at one to five random numbers."""
    dice = random.Random(seed)
    readers = []
    for number in range(count):
        text = f"{number}: " + "".join(dice.choices("abcé👍 \n", k=tokens // 2))
        cuts = sorted(dice.sample(range(tokens // 2), dice.randint(1, 5)))
        body = {"messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": tokens}
        readers.append(Reader(body, cuts))
    return readers
