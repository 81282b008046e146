"""Many clients of one node over links of their own, in this process: what came of each answer, and when.

They are ends as `linkclient` has them, without the WebSocket beside them: `link.connection` on one UDP socket. The echo
engine says each client's own words again, so that every text is known to the byte.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
import msgspec
import yarl

from node.bench.prompts import words
from node.errors import EngineFailed
from node.link.connection import Connection
from node.link.events import Came, Ended, Event
from node.link.packet import VERSION
from node.link.udp import UdpLinks
from node.link.words import Words, cut

_OPENING = 16  # POST /v1/link at the same time
_PROMPT_WORDS = 30


@dataclass(slots=True)
class Heard:
    """What came of one answer: when each chunk came, and of how many tokens it was (a byte each)."""

    expected: str
    times: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    whole: bool = False

    @property
    def exact(self) -> bool:
        """Whether every byte came, and the end."""
        return self.whole and "".join(self.pieces) == self.expected

    def arrivals(self, begin: float, end: float) -> list[float]:
        """When each token came in this time; those of one chunk came together."""
        pairs = zip(self.times, self.sizes, strict=True)
        return [at for at, size in pairs if begin <= at <= end for _ in range(size)]


class Told(msgspec.Struct):
    """A node's answer to POST /v1/link."""

    link: int
    secret: str
    port: int


async def told(session: aiohttp.ClientSession, url: str) -> Told:
    """A key for one more link."""
    async with session.post(f"{url}/v1/link", json={"versions": [VERSION]}) as response:
        return msgspec.json.decode(await response.read(), type=Told)


def end(key: Told) -> Connection:
    """A client's end of a link."""
    secret, now = base64.b64decode(key.secret), time.monotonic()
    return Connection(secret, key.link, client=True, address="node", entropy=secrets.token_bytes, now=now)


def request(text: str, tokens: int) -> bytes:
    """Asks on slot 0 for so many tokens of the text, again and again."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "ignore_eos": True}
    return msgspec.json.encode({"type": "request", "id": 0, "route": "chat", "body": body})


class Crowd:
    """So many clients of the node at `url`, an answer of `tokens` each."""

    def __init__(self, url: str, clients: int, tokens: int) -> None:
        self._url, self._clients, self._tokens = url, clients, tokens
        self._udp = UdpLinks(self._happened, lambda link: None)
        self._words: dict[int, Words] = {}
        self._changed = asyncio.Event()
        self.links: list[Connection] = []
        self.heard: dict[int, Heard] = {}  # by the link's number
        self.begun = self.ended = self.port = 0
        self.wrong = ""  # why the node refused an answer

    async def open(self) -> None:
        """A link for each."""
        opening = asyncio.Semaphore(_OPENING)
        async with aiohttp.ClientSession(raise_for_status=True) as session:

            async def one() -> Told:
                async with opening:
                    return await told(session, self._url)

            keys = await asyncio.gather(*(one() for _ in range(self._clients)))
        self.port = keys[0].port
        await self._udp.open(yarl.URL(self._url).host or "", self.port, peer=True)
        self.links = [end(key) for key in keys]
        for link in self.links:
            self._udp.add(link)

    async def ask(self, over_s: float) -> None:
        """Every client asks, spread over so many seconds."""
        for seed, link in enumerate(self.links):
            text = words(_PROMPT_WORDS, seed)
            self.heard[link.number] = Heard((text * (self._tokens // len(text) + 1))[: self._tokens])
            self._words[link.number] = Words()
            link.open(0)
            for chunk in cut(request(text, self._tokens)):
                link.send(0, chunk, time.monotonic())
            link.finish(0, time.monotonic())
            self._udp.wake(link)
            await asyncio.sleep(over_s / len(self.links))

    async def until(self, is_so: Callable[[Crowd], bool], patience_s: float) -> None:
        """Wait for what an answer's begin or end makes true; raises EngineFailed, and TimeoutError."""
        async with asyncio.timeout(patience_s):
            while not is_so(self):
                self._changed.clear()
                await self._changed.wait()
                if self.wrong:
                    raise EngineFailed(f"The node refused an answer: {self.wrong}")

    @property
    def datagrams(self) -> int:
        """How many came and left."""
        return self._udp.came + self._udp.sent

    def close(self) -> None:
        """Say goodbye; safe to call twice."""
        self._udp.close()

    def _happened(self, link: Connection, event: Event) -> None:
        if isinstance(event, Came):
            self._came(link.number, event.chunk)
        elif isinstance(event, Ended):
            self.heard[link.number].whole = event.whole
            self.ended += 1
            self._changed.set()

    def _came(self, number: int, chunk: bytes) -> None:
        said = self._words[number].take(chunk)
        if isinstance(said, bytes):
            self._told(said)
        elif said:
            heard = self.heard[number]
            heard.times.append(time.monotonic())
            heard.sizes.append(len(said))
            heard.pieces.append(said)
            if len(heard.times) == 1:
                self.begun += 1
                self._changed.set()

    def _told(self, message: bytes) -> None:
        if msgspec.json.decode(message).get("type") == "error":
            self.wrong = message.decode()
            self._changed.set()
