"""POST /mesh/generate: this node answers for a neighbour, with what its own people leave over.

A served request runs at its caller's level, as the tenant "mesh", and all of them together take at most a share of the
slots: an urgent one counts for the slots that it takes from the levels below, too. Where those are more than the share,
nothing of a neighbour's is urgent, or it could keep this node's own people from ever running. Only a neighbour with the
same model is served, token for token; the connection's end is the request's end.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from aiohttp import hdrs, web

from node.errors import Conflict, InvalidRequest, NodeError, Overloaded, TooLarge, Unavailable
from node.generation import Embedded, Event, Failed, Finished, Level, Model, Request, TokenSource
from node.mesh import wire

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.3
BODY_S, STALL_S = 10.0, 60.0  # for a request to come in, and for a reader that takes nothing
_HIGH = 256  # events that wait for a reader before its request is held
_ARRIVING, _ARRIVING_EACH = 64 << 20, 16 << 20  # bytes of requests that are on their way in at a time
_URGENT: tuple[Level, ...] = ("critical", "interactive")

Source = Callable[[Request], TokenSource]


class Share:
    """How many slots neighbours may take. An urgent request weighs what it `displaces`."""

    def __init__(self, slots: int, share: float, displaces: int = 1) -> None:
        self.most = 0 if share == 0 else max(1, int(slots * share))
        self.taken = 0
        self._displaces = displaces

    def level(self, asked: Level) -> Level:
        """At which level it may run here."""
        return asked if asked not in _URGENT or self._displaces <= self.most else "standard"

    def take(self, level: Level) -> int:
        """Its weight, to be given back; raises Overloaded or Unavailable."""
        if self.most == 0:
            raise Unavailable("This node does not answer for its neighbours (routes.share).")
        weight = min(self.most, self._displaces if level in _URGENT else 1)
        if self.taken + weight > self.most:
            raise Overloaded("This node answers for as many neighbours as it may.", retry_after=1)
        self.taken += weight
        return weight

    def give(self, weight: int) -> None:
        """A request is over."""
        self.taken -= weight


class Serving:
    """The route. `source` says which one runs a request; `own` whether an id is under way here already."""

    def __init__(
        self,
        model: Model,
        digest: str,
        source: Source,
        share: Share,
        own: Callable[[str], bool] = lambda id: False,
    ) -> None:
        self._model = model
        self._digest = digest
        self._source = source
        self._share = share
        self._own = own
        self._peer_of: Callable[[web.Request], str] = lambda request: ""
        self._serving: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._arriving: Counter[str] = Counter()  # bytes, by who sends them

    def add_to(self, app: web.Application, peer_of: Callable[[web.Request], str]) -> None:
        """Add the route; run the application with `handler_cancellation`. `peer_of` says who sent a request."""
        self._peer_of = peer_of
        app.router.add_post(wire.PATH, self._handle)

    def status(self) -> Mapping[str, Any]:
        """How many were served and refused, and how much of the share is taken."""
        counted = {name: self._counts[name] for name in ("served", "refused", "broken")}
        return {**counted, "running": len(self._serving), "slots_taken": self._share.taken, "slots": self._share.most}

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        return await self.answer(request, self._peer_of(request))

    async def answer(self, request: web.Request, peer: str) -> web.StreamResponse:
        """What the neighbour `peer` asks for; run it with `handler_cancellation`."""
        try:
            asked = wire.errand(await self._arrived(request, peer))
            run = self._accept(asked)
            weight = self._share.take(run.level)
        except NodeError as error:
            return self._refuse(error)
        self._serving.add(asked.id)
        try:
            source = self._source(run)
            outgoing = _Outgoing(source, run.id)
            try:
                source.submit(run, outgoing.feed)
            except NodeError as error:
                return self._refuse(error)
            log.info("a neighbour is served", extra={"id": run.id, "prompt_tokens": len(run.prompt), "peer": peer})
            return await self._stream(request, outgoing)
        finally:
            self._serving.discard(asked.id)
            self._share.give(weight)

    async def _arrived(self, request: web.Request, peer: str) -> bytes:
        """The whole body. How much may be on its way in at a time is bounded, for each neighbour and for all."""
        size = min(wire.MAX_BYTES if request.content_length is None else request.content_length, wire.MAX_BYTES)
        if self._arriving[peer] + size > _ARRIVING_EACH or self._arriving.total() + size > _ARRIVING:
            raise Overloaded("Too many requests of neighbours are on their way in.", retry_after=1)
        self._arriving[peer] += size
        try:
            return await _body(request)
        finally:
            self._arriving[peer] -= size
            if not self._arriving[peer]:
                del self._arriving[peer]

    def _accept(self, asked: wire.Errand) -> Request:
        if asked.model_digest != self._digest or not self._digest:
            raise Conflict("This node serves another model.")
        if asked.id in self._serving or self._own(asked.id):
            raise Conflict("This request came round to where it was before.")
        info = self._model.info
        asked = msgspec.structs.replace(asked, level=self._share.level(asked.level))
        return wire.request_of(asked, uuid.uuid4().hex[:16], info.vocabulary_size, info.context)

    async def _stream(self, request: web.Request, outgoing: _Outgoing) -> web.StreamResponse:
        response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: wire.CONTENT_TYPE})
        try:
            await response.prepare(request)
            while not outgoing.told:
                data = await outgoing.next(HEARTBEAT_S)
                async with asyncio.timeout(STALL_S):
                    await response.write(data)
            await response.write_eof()
        except (ConnectionError, TimeoutError):
            self._counts["broken"] += 1
            return response
        else:
            self._counts["served"] += 1
            return response
        finally:
            outgoing.close()

    def _refuse(self, error: NodeError) -> web.Response:
        self._counts["refused"] += 1
        headers = {hdrs.CONTENT_TYPE: wire.CONTENT_TYPE}
        if error.retry_after is not None:
            headers[hdrs.RETRY_AFTER] = str(error.retry_after)
        return web.Response(status=error.status, body=wire.frame(Failed(error)), headers=headers)


class _Outgoing:
    """What waits for the reader of one request."""

    def __init__(self, source: TokenSource, id: str) -> None:
        self._source, self._id = source, id
        self._waiting: list[Event] = []
        self._news = asyncio.Event()
        self._held = self._ended = False
        self.told = False  # the end was given out

    def feed(self, event: Event) -> None:
        """Take one event from the source."""
        if isinstance(event, Embedded):
            event = Failed(InvalidRequest("Vectors do not travel."))
        self._ended = self._ended or isinstance(event, Finished | Failed)
        self._waiting.append(event)
        self._news.set()
        self._hold(len(self._waiting) > _HIGH)

    async def next(self, timeout: float) -> bytes:
        """The frames that wait, or a sign of life after `timeout` seconds without any."""
        if not self._waiting:
            try:
                async with asyncio.timeout(timeout):
                    await self._news.wait()
            except TimeoutError:
                return wire.ALIVE
        events, self._waiting = self._waiting, []
        self._news.clear()
        self._hold(False)
        self.told = self._ended
        return b"".join(map(wire.frame, events))

    def close(self) -> None:
        """Nobody reads it any more."""
        if not self._ended:
            self._source.cancel(self._id)

    def _hold(self, held: bool) -> None:
        if held != self._held and not self._ended:
            self._held = held
            self._source.hold(self._id, held)


async def _body(request: web.Request) -> bytes:
    """The whole body, bounded in bytes and in time."""
    if (request.content_length or 0) > wire.MAX_BYTES:
        raise TooLarge(f"An errand has at most {wire.MAX_BYTES} bytes.")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > wire.MAX_BYTES:
                    raise TooLarge(f"An errand has at most {wire.MAX_BYTES} bytes.")
    except TimeoutError as error:
        raise InvalidRequest("The errand did not come in time.") from error
    return bytes(body)
