"""A neighbour as an upstream: POST /mesh/generate and its stream of frames, believed only as far as it can be checked.

A neighbour sends a sign of life every 0.3 s, so a second of silence means that it is gone; a closed connection says so
at once. What it sends is bounded: frames, the number of tokens, their ids. The text of a token comes from this node's
own vocabulary. It cannot be caught at a wrong token: whoever holds a certificate of the fleet is trusted so far.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable

import aiohttp

from node.errors import NodeError, UpstreamFailed
from node.generation import Event, Failed, Finished, Model, Request, Token
from node.mesh import wire
from node.mesh.remote import Held

CONNECT_S, ACCEPT_S = 1.0, 2.0
FIRST_S, STALL_S = 120.0, 20.0  # for its first token, and for each next one, while it shows signs of life
_CHUNK = 64 << 10


class Peer:
    """One neighbour, reached through its `session`.

    `digest` is of the model that both must have; `silence_s` how long it may say nothing at all.
    """

    def __init__(
        self, id: str, session: Callable[[str], aiohttp.ClientSession], model: Model, digest: str, silence_s: float
    ) -> None:
        self.name = f"The neighbour {id}"
        self._id = id
        self._session = session
        self._model = model
        self._digest = digest
        self._silence_s = silence_s

    async def answer(self, request: Request, held: Held) -> AsyncIterator[Event]:
        """See `remote.Upstream`."""
        body = wire.errand_of(request, self._digest)
        async with asyncio.timeout(ACCEPT_S):
            response = await self._session(self._id).post(
                wire.PATH,
                data=io.BytesIO(body),  # whatever its size
                headers={"Content-Type": "application/msgpack"},
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            )
        try:
            if response.status != 200 or response.content_type != wire.CONTENT_TYPE:
                raise await _refusal(self.name, response)
            async for event in self._events(request, response, held):
                yield event
        finally:
            response.close()

    async def _events(self, request: Request, response: aiohttp.ClientResponse, held: Held) -> AsyncIterator[Event]:
        reader = wire.Reader(self._model.info.vocabulary_size, lambda id: self._model.decode((id,)))
        loop = asyncio.get_running_loop()
        made, most = 0, request.max_tokens - len(request.continued)
        until = loop.time() + FIRST_S
        while True:
            if await held.wait():
                until = loop.time() + STALL_S
            async with asyncio.timeout(self._silence_s):
                data = await response.content.read(_CHUNK)
            if not data:
                return
            try:
                events = reader.feed(data)
            except ValueError as error:
                raise UpstreamFailed(f"{self.name} sent {error}.") from error
            for event in events:
                if isinstance(event, Token):
                    made += 1
                    until = loop.time() + STALL_S
                self._check(event, made, most)
                yield event
            if loop.time() > until:
                raise UpstreamFailed(f"{self.name} makes no tokens.")

    def _check(self, event: Event, made: int, most: int) -> None:
        if made > most:
            raise UpstreamFailed(f"{self.name} says more than it was asked for.")
        if isinstance(event, Finished) and (event.reason == "cancelled" or (event.reason == "length" and made < most)):
            raise UpstreamFailed(f"{self.name} stopped before its answer was whole.")


async def _refusal(name: str, response: aiohttp.ClientResponse) -> NodeError:
    """What a neighbour has against a request, as far as it can be read."""
    retry_after = seconds(response.headers.get("Retry-After"))
    raw = b""
    if response.content_type == wire.CONTENT_TYPE:
        async with asyncio.timeout(ACCEPT_S):
            raw = await response.content.read(wire.MAX_FRAME)
    try:
        events = wire.Reader(0, lambda id: b"").feed(raw)
    except ValueError:
        events = []
    if events and isinstance(events[0], Failed):
        error = events[0].error
        return error if retry_after is None else _retrying(error, retry_after)
    return UpstreamFailed(f"{name} answers {response.status}.", answered=response.status, retry_after=retry_after)


def seconds(retry_after: str | None) -> int | None:
    """A Retry-After header in seconds, 1 to 3600; None for a date or nonsense."""
    if retry_after is None or not (retry_after.isascii() and retry_after.isdecimal() and len(retry_after) < 9):
        return None
    return min(max(int(retry_after), 1), 3600)


def _retrying(error: NodeError, retry_after: int) -> NodeError:
    error.retry_after = retry_after
    return error
