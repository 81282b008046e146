"""What a reader that takes a byte a second costs those beside it.

Rounds of two kinds take turns: all readers read, or the last one takes a byte a second. Compared are the gaps of the
others, and the node's memory at the end of a round, because that is when all that the slow one did not take waits.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from node.bench.figures import Arrivals, gaps, percentile
from node.bench.process import NodeProcess
from node.bench.prompts import question
from node.bench.report import Figure
from node.bench.streams import GREEDY, together
from node.client import Client

GROWTH = 1.10
RSS_MIB = 16.0
_EVERY_S = 1.0
_RECEIVE_BYTES = 4096  # the kernel doubles it; by default it would read megabytes for us

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured. The slow reader's answer is as long as the others', so that all stream all the time."""

    rounds: int = 3
    readers: int = 8
    tokens: int = 400


@dataclass(frozen=True, slots=True)
class Round:
    """Gaps of the readers that read, seconds, and the node's memory at the end, bytes; without and with a slow one."""

    usual: tuple[float, ...]
    usual_rss: int
    beside: tuple[float, ...]
    beside_rss: int


class SlowReader:
    """The run; `rounds` fills up as it goes on."""

    def __init__(self, node: NodeProcess, client: Client, plan: Plan, tell: Tell) -> None:
        self._node, self._client, self._plan, self._tell = node, client, plan, tell
        self.rounds: list[Round] = []

    @property
    def runs(self) -> int:
        """How often `tell` is called."""
        return 2 * self._plan.rounds

    async def run(self) -> None:
        """Warm up, then measure all rounds."""
        await self._read(self._plan.readers)
        for number in range(self._plan.rounds):
            self._tell(f"round {number + 1}, all read")
            usual = await self._read(self._plan.readers)
            usual_rss = self._node.rss()
            self._tell(f"round {number + 1}, one takes a byte a second")
            slow = asyncio.create_task(take_slowly(self._node.url, self._plan.tokens))
            try:
                beside = await self._read(self._plan.readers - 1)
                beside_rss = self._node.rss()
            finally:
                slow.cancel()
                with suppress(asyncio.CancelledError):
                    await slow
            few = [gap for stream in usual[: self._plan.readers - 1] for gap in gaps(stream.times)]
            slowed = [gap for stream in beside for gap in gaps(stream.times)]
            self.rounds.append(Round(tuple(few), usual_rss, tuple(slowed), beside_rss))

    async def _read(self, readers: int) -> list[Arrivals]:
        return await together(self._client, [question(number) for number in range(readers)], self._plan.tokens)


async def take_slowly(url: str, tokens: int) -> None:
    """Ask for a stream and take one byte of it a second, until cancelled."""
    address = urlsplit(url)
    body = json.dumps(
        {"messages": [{"role": "user", "content": question(99)}], "stream": True, "max_tokens": tokens, **GREEDY}
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: node\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        connection.setblocking(False)
        await loop.sock_connect(connection, (address.hostname, address.port))
        await loop.sock_sendall(connection, head + body)
        while await loop.sock_recv(connection, 1):  # noqa: ASYNC110  # it waits for nothing, it is slow
            await asyncio.sleep(_EVERY_S)


def figures(rounds: Sequence[Round]) -> list[Figure]:
    """Both promises, each by the median round."""
    growths = [percentile(round.beside, 0.95) / percentile(round.usual, 0.95) for round in rounds]
    usual, beside = (
        percentile((gap for round in rounds for gap in getattr(round, kind)), 0.95) * 1000
        for kind in ("usual", "beside")
    )
    mib = [(round.beside_rss - round.usual_rss) / (1 << 20) for round in rounds]
    return [
        Figure(
            "p95 gap of the others, beside a slow reader / without",
            percentile(growths, 0.5),
            at_most=GROWTH,
            detail=f"{beside:.1f} / {usual:.1f} ms; rounds {', '.join(f'{growth:.2f}' for growth in growths)}",
        ),
        Figure("memory that it costs", percentile(mib, 0.5), "MiB", at_most=RSS_MIB, detail=f"most {max(mib):.1f} MiB"),
    ]
