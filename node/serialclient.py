"""A client on a serial line: asks a node at its other end, without any network.

    async with SerialClient("/dev/ttyUSB0") as client:
        async for event in client.chat([{"role": "user", "content": "Hi"}]): ...

`chat` yields what `client.Client.chat` yields. The line itself repeats what was lost; when nothing at all comes for
`silence_s` seconds, the answer is a BrokenStream.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from node import frames
from node.answer import Answer, Done, TextDelta, TextRewind
from node.chunks import BrokenStream
from node.errors import InvalidRequest
from node.link.events import Event
from node.link.serial import Mode, SerialLine
from node.link.words import cut
from node.linkclient import Reading
from node.resume import Ledger


class SerialClient:
    """One line to one node; use it as an async context manager."""

    def __init__(self, device: str, baud: int = 115_200, mode: Mode = "wired", *, silence_s: float = 60.0) -> None:
        self._serial = SerialLine(device, baud, mode, client=True, on_event=self._happened)
        self._silence_s = silence_s
        self._arrived: dict[int, asyncio.Queue[Event]] = {}

    async def __aenter__(self) -> Self:
        await self._serial.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._serial.close()

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], **more: Any
    ) -> AsyncGenerator[TextDelta | TextRewind | Done, None]:
        """Stream the answer to a conversation; `more` goes into the request where it is not None."""
        body = {"messages": messages, **{key: value for key, value in more.items() if value is not None}}
        stream = secrets.randbits(32)
        try:
            request = frames.request(body, resumable=False, key=None, ref=stream)
        except UnicodeEncodeError as error:
            raise InvalidRequest("The request holds a lone surrogate, which no UTF-8 text can carry.") from error
        ledger, reading = Ledger(Answer(time.perf_counter()), 0), Reading(-1)
        ledger.opened()
        self._ask(stream, request)
        at = time.perf_counter()
        try:
            while not reading.frames.ended:
                chunk = reading.take(await self._next(stream))
                at = time.perf_counter()
                if chunk is not None and (event := ledger.take(chunk, at)):
                    yield event
            yield ledger.done(at)
        finally:
            self._leave(stream)

    def _ask(self, stream: int, request: bytes) -> None:
        now, line = asyncio.get_running_loop().time(), self._serial.line
        self._arrived[stream] = asyncio.Queue()
        line.open(stream, now)
        for chunk in cut(request):
            line.send(stream, chunk, now)
        line.finish(stream, now)
        self._serial.wake()

    async def _next(self, stream: int) -> Event:
        try:
            async with asyncio.timeout(self._silence_s):
                return await self._arrived[stream].get()
        except TimeoutError:
            if self._serial.line.closed:
                raise BrokenStream("The serial line is gone.") from None
            raise BrokenStream(f"Nothing came over the line for {self._silence_s:g} seconds.") from None

    def _leave(self, stream: int) -> None:
        del self._arrived[stream]
        self._serial.line.stop(stream, asyncio.get_running_loop().time())
        self._serial.wake()

    def _happened(self, event: Event) -> None:
        slot = getattr(event, "slot", None)
        if slot in self._arrived:
            self._arrived[slot].put_nowait(event)
