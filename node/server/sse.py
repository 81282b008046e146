"""Server-sent events: one response that is written piece by piece, and what to do when that goes wrong.

On OpenAI's path there is no `id:`, no `retry:` and no `event:` line: the official client dispatches an event on every
blank line once it has seen an id, so even a keepalive must be a comment with a single newline. Clients that want ids
(EventSource resumes by them) ask with a header.

A slow reader is paced (see `paced`); what is written all the same, a stream's end for instance, waits until there is
room, and a reader that takes nothing at all for `paced.STALL_S` seconds is cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from aiohttp import hdrs, web

from node.errors import NodeError
from node.server import paced, replies
from node.server.meter import Meter
from node.server.paced import Wire

KEEPALIVE: Final = b": ka\n"
_SMALL = 32 << 10  # below the transport's high-water mark: with nothing in the way such a write never waits

_HEADERS = {
    hdrs.CONTENT_TYPE: "text/event-stream",
    hdrs.CACHE_CONTROL: "no-cache",
    "X-Accel-Buffering": "no",
}


class EventStream:
    """One streaming response over `wire`; made by `open`, which sends the headers."""

    def __init__(self, request: web.Request, response: web.StreamResponse, wire: Wire, ids: bool) -> None:
        self.response = response
        self.wire = wire
        self._ids = ids
        self.status = 200  # what became of it, which the status line could not know
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._last_write = self._loop.time()

    @classmethod
    async def open(
        cls, request: web.Request, headers: Mapping[str, str], meter: Meter, capacity: int, *, ids: bool = False
    ) -> EventStream:
        """Send the headers; from here on errors of this request become events. `ids`: numbered events have `id:`."""
        response = web.StreamResponse(headers={**_HEADERS, **headers})
        await response.prepare(request)
        if request.transport is None:
            raise ConnectionResetError("the reader is gone")
        stream = cls(request, response, Wire(request.transport, meter, capacity), ids)
        request[STREAM] = stream
        return stream

    def until_keepalive(self, keepalive_s: float) -> float:
        """Seconds until the silence has lasted `keepalive_s`; 0 when it has."""
        return max(0.0, self._last_write + keepalive_s - self._loop.time())

    async def write(self, data: bytes, number: int | None = None) -> None:
        """Send whole events; waits while the reader lags. Raises ConnectionError when the reader is gone.

        `number` is the last entry that went into them.
        """
        if self._ids and number is not None:
            data = _with_id(data, number)
        transport = self._request.transport
        if transport is None:
            raise ConnectionResetError("the reader is gone")
        if len(data) < _SMALL and transport.get_write_buffer_size() == 0:
            await self.response.write(data)
        else:
            await self._write_patiently(data, transport)
        self._last_write = self._loop.time()
        self.wire.wrote(len(data))

    async def fail(self, error: NodeError) -> None:
        """Tell the reader what went wrong and close the connection; there is no `[DONE]` after an error."""
        self.status = error.status
        self.response.force_close()
        await self.write(b"data: " + replies.error_body(error) + b"\n\n")

    async def _write_patiently(self, data: bytes, transport: asyncio.Transport) -> None:
        try:
            async with asyncio.timeout(paced.STALL_S):
                await self.response.write(data)
        except TimeoutError as error:
            transport.abort()
            raise ConnectionResetError("the reader takes nothing") from error


def _with_id(data: bytes, number: int) -> bytes:
    """The id goes on the last event only: whoever has it has all before."""
    last = data.rfind(b"\n\n", 0, -2) + 2 if b"\n\n" in data[:-2] else 0
    return data[:last] + b"id: %d\n" % number + data[last:]


STREAM: Final[web.RequestKey[EventStream]] = web.RequestKey("stream", EventStream)
