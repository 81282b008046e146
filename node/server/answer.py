"""One generation from its submission to the last byte of its answer, streamed or whole.

Whatever ends the request, a client that went away included, the session is cancelled once nobody reads it any more; so
a slot, or a place in the queue, is free within one step.
"""

from __future__ import annotations

import asyncio
import logging

from aiohttp import hdrs, web

from node.errors import Unavailable
from node.generation import End, Failed, Finished, Service
from node.server.boundary import json_response
from node.server.meter import Meter
from node.server.replays import Key, Replays, Running, Work, key_of
from node.server.replies import Reply
from node.server.sse import KEEPALIVE, EventStream
from node.stream.session import Session

ARRIVED = web.RequestKey("arrived", float)  # when the request came, on the loop's clock

_log = logging.getLogger(__name__)


class Answerer:
    """Runs work for HTTP requests."""

    def __init__(self, service: Service, meter: Meter, keepalive_s: float) -> None:
        self._service = service
        self._meter = meter
        self._keepalive_s = keepalive_s
        self._replays = Replays()

    async def answer(self, request: web.Request, body: bytes, work: Work) -> web.StreamResponse:
        """Submit `work`, or join what an earlier attempt began; raises what the source raises."""
        running = self._begin(_key(request, body), work)
        running.readers += 1
        try:
            if running.work.stream:
                return await self._streamed(request, running.session, running.work.reply())
            return await self._whole(running.session, running.work.reply())
        finally:
            running.readers -= 1
            if running.readers == 0:
                self._close(running)

    def _begin(self, key: Key | None, work: Work) -> Running:
        now = asyncio.get_running_loop().time()
        if key is not None and (earlier := self._replays.find(key, now)):
            _log.info("generation joined", extra={"id": earlier.work.request.id})
            return earlier
        session = Session(work.request, self._service.source.cancel)
        self._service.source.submit(work.request, session.feed)
        running = Running(work, session)
        if key is not None:
            self._replays.keep(key, running, now)
        told = {"id": work.request.id, "prompt_tokens": len(work.request.prompt), "stream": work.stream}
        _log.info("generation opened", extra={**told, "max_tokens": work.request.max_tokens})
        return running

    def _close(self, running: Running) -> None:
        """The last reader left: stop what nobody wants, count it, forget it unless it can be replayed."""
        session = running.session
        session.cancel()
        whole = isinstance(session.end, Finished) and session.end.reason != "cancelled"
        if not whole:
            self._replays.drop(running)
        if running.counted:
            return
        running.counted = True
        if isinstance(session.end, Finished):
            self._meter.generation(session.end)
        told = {"id": running.work.request.id, "completion_tokens": session.completion_tokens}
        _log.info("generation closed", extra={**told, "reason": _reason(session.end)})

    async def _whole(self, session: Session, reply: Reply) -> web.StreamResponse:
        end = _checked(await session.finished())
        return json_response(reply.whole(session.text, session.tokens, end, session.cached_tokens))

    async def _streamed(self, request: web.Request, session: Session, reply: Reply) -> web.StreamResponse:
        stream = await EventStream.open(request)
        if opening := reply.opening():
            await stream.write(opening)
        await self._pieces(request[ARRIVED], stream, session, reply)
        end = _checked(await session.finished())
        await stream.write(reply.closing(end, session.cached_tokens))
        return stream.response

    async def _pieces(self, last: float, stream: EventStream, session: Session, reply: Reply) -> None:
        """Everything the session has, as it comes; `last` is when the request arrived."""
        now, observe, cursor = asyncio.get_running_loop().time, self._meter.first_text, 0
        while True:
            if piece := session.take(cursor):
                cursor = piece.cursor
                if data := reply.piece(piece):
                    await stream.write(data)
                    sent = now()
                    observe(sent - last)
                    last, observe = sent, self._meter.gap
            elif session.end is not None:
                return
            elif not stream.until_keepalive(self._keepalive_s):
                await stream.write(KEEPALIVE)
            else:
                await session.changed(cursor, stream.until_keepalive(self._keepalive_s))


def _key(request: web.Request, body: bytes) -> Key | None:
    if sent := request.headers.get("Idempotency-Key"):
        return key_of(sent, request.headers.get(hdrs.AUTHORIZATION, ""), request.path, body)
    return None


def _checked(end: End) -> Finished:
    """The end of an answer that is whole; anything else is raised, never passed off as one."""
    if isinstance(end, Failed):
        raise end.error
    if not isinstance(end, Finished) or end.reason == "cancelled":
        raise Unavailable("The node stopped before this answer was finished.")
    return end


def _reason(end: End | None) -> str:
    return end.reason if isinstance(end, Finished) else type(end).__name__.lower()
