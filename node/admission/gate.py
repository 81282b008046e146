"""The queue as a stage on a request's way: a TokenSource that holds requests until the source behind has a slot."""

from __future__ import annotations

import asyncio
import logging
import time

from node.admission.queue import FifoQueue
from node.errors import Unavailable
from node.generation import Embedded, Event, Failed, Finished, Request, Sink, TokenSource

log = logging.getLogger(__name__)


class Gate:
    """Admits requests to `source`, `slots` at a time, in order of arrival. Belongs to the event loop's thread."""

    def __init__(self, source: TokenSource, slots: int, max_waiting: int) -> None:
        self._source = source
        self._queue = FifoQueue(slots, max_waiting)
        self._held: dict[str, tuple[Request, Sink]] = {}
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        return self._queue.running

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    @property
    def closed(self) -> bool:
        return self._closed

    def submit(self, request: Request, sink: Sink) -> None:
        """Run or queue `request`; raises Overloaded when the queue is full and Unavailable once closed."""
        if self._closed:
            raise Unavailable("This node is shutting down.", retry_after=5)
        runs = self._queue.offer(request.id, time.monotonic())
        self._idle.clear()
        if runs:
            self._start(request, sink)
        else:
            self._held[request.id] = (request, sink)

    def cancel(self, request_id: str) -> None:
        """Drop a waiting request, or pass the word on for a running one."""
        if not self._queue.remove(request_id):
            self._source.cancel(request_id)
            return
        request, sink = self._held.pop(request_id)
        # Not from inside this call: a sink may be the caller.
        asyncio.get_running_loop().call_soon(sink, Finished("cancelled", len(request.prompt), 0))
        self._note_idle()

    def hold(self, request_id: str, held: bool) -> None:
        """Passed on; one that waits has nothing to hold back yet."""
        self._source.hold(request_id, held)

    def close(self) -> None:
        """Admit nothing new; what runs or waits goes on."""
        self._closed = True

    async def drained(self) -> None:
        """Wait until nothing runs or waits."""
        await self._idle.wait()

    def _start(self, request: Request, sink: Sink) -> None:
        def forward(event: Event) -> None:
            if isinstance(event, Finished | Embedded | Failed):
                self._release(request.id)
            sink(event)

        self._source.submit(request, forward)

    def _release(self, request_id: str) -> None:
        following = self._queue.release(request_id, time.monotonic())
        if following is not None:
            request, sink = self._held.pop(following)
            try:
                self._start(request, sink)
            except Unavailable as error:
                # The source closed while this one waited; its reader must hear of it.
                log.warning("a waiting request could not start", extra={"request_id": following})
                asyncio.get_running_loop().call_soon(sink, Failed(error))
                self._release(following)
        self._note_idle()

    def _note_idle(self) -> None:
        if not self._queue.running and not self._queue.waiting:
            self._idle.set()
