"""One generation from its submission to the last byte of its answer, streamed or whole.

Whatever ends the request, a client that went away included, the session is cancelled once nobody reads it any more; so
a slot, or a place in the queue, is free within one step. Only a resumable generation goes on without readers: it is in
the store, and whoever owns it may come back for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import replace

from aiohttp import web

from node.errors import Conflict, InvalidRequest, NodeError, Unavailable
from node.generation import End, Failed, Finished, Service
from node.server.boundary import json_response
from node.server.compact import Levelled, Render
from node.server.guard import Identity, authorization_of
from node.server.level import HEADER, Conditions, Levels, asked_level
from node.server.meter import Meter
from node.server.paced import Paced, Wire
from node.server.recall import Recall
from node.server.replays import Key, Replays, key_of, key_of_body
from node.server.replies import Reply
from node.server.sse import KEEPALIVE, EventStream
from node.server.work import Running, Work
from node.settings import Settings
from node.store.streams import StoredStream, StreamStore
from node.stream.session import Session

ARRIVED = web.RequestKey("arrived", float)  # when the request came, on the loop's clock
RESUMABLE = "Outpost-Resumable"
EVENT_IDS = "Outpost-Event-Ids"
_SILENT_S = 60.0  # so long at most a stream has no status: proxies give up after a minute
_LATE_S = 0.1  # an end that is due now may come so late

_log = logging.getLogger(__name__)


class Answerer:
    """Runs work for HTTP requests. `live` holds the resumable generations that are not ended, by id."""

    def __init__(
        self, settings: Settings, service: Service, meter: Meter, store: StreamStore | None, identity: Identity
    ) -> None:
        self.identity = identity
        self._service = service
        self._meter = meter
        self._settings = settings
        self._store = store
        self._replays = Replays()
        self._recall = Recall()
        self._recalls = settings.load.cached_answers == "ask"
        self._tasks: set[asyncio.Task[None]] = set()
        self.live: dict[str, Running] = {}

    async def answer(self, request: web.Request, body: bytes, work: Work) -> web.StreamResponse:
        """Submit `work`, or join what an earlier attempt began; raises what the source raises."""
        running = await self.join(request, body, work)
        return await self.follow(request, running, running.work.stream)

    async def join(self, request: web.Request, body: bytes, work: Work) -> Running:
        """What `answer` follows: `work` submitted, or what an earlier attempt began."""
        key, joins = _key(request, body)
        return await self.begin(work, self.identity.owner(request), self._resumable(request), key, joins)

    async def follow(
        self, request: web.Request, running: Running, stream: bool, start: int = 0, *, rewind: bool = False
    ) -> web.StreamResponse:
        """One reader's connection to a generation, from entry `start` on."""
        with self.reading(running):
            reply = running.reply()
            if stream:
                return await self._streamed(request, running, reply, start, rewind)
            return await self._whole(running, reply)

    @contextlib.contextmanager
    def reading(self, running: Running) -> Iterator[None]:
        """Somebody reads it; when the last reader is gone, what is not resumable is stopped."""
        running.readers += 1
        try:
            yield
        finally:
            running.readers -= 1
            if running.readers == 0 and not (running.resumable and running.session.end is None):
                self.close(running)

    def adopt(self, running: Running) -> None:
        """Take charge of a resumable generation: it goes on, whoever reads it, until it ends."""
        self.live[running.work.request.id] = running
        task = asyncio.get_running_loop().create_task(self._watch(running))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self, running: Running) -> None:
        """Nobody reads it or it ended: stop what nobody wants, count it, forget it unless it can be replayed."""
        session = running.session
        session.cancel()
        self.live.pop(running.work.request.id, None)
        whole = isinstance(session.end, Finished) and session.end.reason != "cancelled"
        if not whole:
            self._replays.drop(running)
        elif isinstance(session.end, Finished):
            self._remember(running, session.end)
        if running.counted:
            return
        running.counted = True
        if isinstance(session.end, Finished):
            self._meter.generation(session.end)
        told = {"id": running.work.request.id, "completion_tokens": session.completion_tokens}
        _log.info("generation closed", extra={**told, "reason": _reason(session.end)})

    async def _watch(self, running: Running) -> None:
        await running.session.finished()
        if running.readers == 0:
            self.close(running)

    async def begin(
        self, work: Work, owner: bytes, resumable: bool, key: Key | None = None, joins: bool = True
    ) -> Running:
        """Submit `work`, or find what an earlier attempt with `key` began; raises what the source raises."""
        now = asyncio.get_running_loop().time()
        if key and joins and (earlier := self._replays.find(key, now)):
            _log.info("generation joined", extra={"id": earlier.work.request.id})
            return earlier
        if (recalled := self._recalled(work, owner, now)) is not None:
            return recalled
        source = self._service.source if work.model is None else self._service.source_of(work.model)
        session = Session(work.request, source, self._store if resumable else None)
        running = Running(work, session, owner, resumable)
        if key:
            self._replays.keep(key, running, now)  # before anything is awaited: the next attempt may be on its way
        try:
            if resumable and self._store is not None:
                await self._store.open(StoredStream(owner, work.request, work.origin, time.time()))
            source.submit(work.request, session.feed)
        except BaseException as error:
            self._replays.drop(running)
            # Who joined must hear of it, and the store must not take it for one that a dead process left.
            session.feed(Failed(error if isinstance(error, NodeError) else Unavailable("The request was abandoned.")))
            raise
        running.limits = self._service.admission.headers(work.request.id)
        if resumable:
            self.adopt(running)
        told = {"id": work.request.id, "prompt_tokens": len(work.request.prompt), "stream": work.stream}
        _log.info("generation opened", extra={**told, "max_tokens": work.request.max_tokens, "resumable": resumable})
        return running

    def _remember(self, running: Running, end: Finished) -> None:
        """Keep an answer that may be given again; one that was cut down by the load is not as good as it could be."""
        work = running.work
        if self._recalls and work.question and not work.degraded:
            self._recall.keep(work.question, running.session.entries, end, asyncio.get_running_loop().time())

    def _recalled(self, work: Work, owner: bytes, now: float) -> Running | None:
        """What was answered to the same question a moment ago, where the node is so overloaded that this is better."""
        if not (work.question and self._service.admission.recalls):
            return None
        answer = self._recall.find(work.question, now)
        if answer is None:
            return None
        self._meter.recalled()
        _log.info("generation recalled", extra={"id": work.request.id})
        session = Session.ended(work.request, answer.entries, answer.end)
        told = replace(work, degraded=(*work.degraded, "cached"))
        return Running(told, session, owner, counted=True, cached_s=now - answer.at)

    def _resumable(self, request: web.Request) -> bool:
        sent = request.headers.get(RESUMABLE, "0")
        if sent not in ("0", "1"):
            raise InvalidRequest(f"The header {RESUMABLE} must be 0 or 1.", param=RESUMABLE)
        return self.outlives(sent == "1", RESUMABLE)

    def outlives(self, asked: bool, param: str) -> bool:
        """Whether a generation goes on without readers, given what its client asked for."""
        mode = self._settings.streams.resumable
        if asked and mode == "never":
            raise InvalidRequest("This node keeps no generation for later (streams.resumable).", param=param)
        return mode == "always" or asked

    async def _whole(self, running: Running, reply: Reply) -> web.StreamResponse:
        session, reader = running.session, object()
        session.lagging(reader, False)  # it takes nothing before the end, but nobody else may hold it up
        try:
            end = checked(await session.finished())
        finally:
            session.left(reader)
        body = reply.whole(session.text, session.tokens, end, session.cached_tokens)
        return json_response(body, headers=running.headers)

    async def _streamed(
        self, request: web.Request, running: Running, reply: Reply, start: int, rewind: bool
    ) -> web.StreamResponse:
        session = running.session
        if start == 0:
            await _while_it_may_expire(session)
        skip(session, reply, start)
        asked = asked_level(request.headers.get(HEADER), reply.least_level)
        ids, capacity = request.headers.get(EVENT_IDS) == "1", self._settings.streams.reader_buffer_bytes
        stream = await EventStream.open(request, running.headers, self._meter, capacity, ids=ids)
        if asked is not None:
            reply = self._levelled(reply, asked, session, stream.wire)
        if rewind:
            await stream.write(reply.rewind(start - 1))
        elif start == 0 and (opening := reply.opening()):
            await stream.write(opening)
        await self._pieces(request[ARRIVED], stream, session, reply, start)
        end = checked(await session.finished())
        await stream.write(reply.closing(end, session.cached_tokens, session.count - 1))
        return stream.response

    async def _pieces(self, last: float, stream: EventStream, session: Session, reply: Reply, cursor: int) -> None:
        """Everything the session has, as it comes; `last` is when the request arrived."""
        now, observe = asyncio.get_running_loop().time, self._meter.first_text if cursor == 0 else self._meter.gap
        keepalive_s = self._settings.server.keepalive_s
        with Paced(stream.wire, session, cursor) as paced:
            while not paced.done:
                if piece := await paced.next(stream.until_keepalive(keepalive_s)):
                    if data := reply.piece(piece):
                        await stream.write(data, piece.cursor - 1)
                        sent = now()
                        observe(sent - last)
                        last, observe = sent, self._meter.gap
                elif not paced.done:
                    await stream.write(KEEPALIVE)

    def _levelled(self, reply: Reply, asked: int, session: Session, wire: Wire) -> Reply:
        constraint = session.request.constraint
        render: Render = "json" if constraint is not None and constraint.kind == "json_schema" else "markdown"

        def look() -> tuple[Conditions, float]:
            now = wire.clock()
            return Conditions(wire.pacer.rtt_s, self._meter.memory_free(now)), now

        return Levelled(reply, Levels(asked), render, look)


async def _while_it_may_expire(session: Session) -> None:
    """A request that may be over before it began keeps its status open until then; raises what ended it."""
    ttl_s = session.request.ttl_s
    if ttl_s is not None and session.count == 0:
        await session.changed(0, min(ttl_s + _LATE_S, _SILENT_S))
        if session.end is not None and session.count == 0:
            checked(session.end)


def ahead(last: int) -> Conflict:
    """The refusal of a reader who has seen more than the journal holds."""
    return Conflict(
        f"This generation's last entry is number {last}; what you have beyond it was lost and will be made anew. "
        f"Forget it and resume from {last + 1}.",
        param="from",
    )


def skip(session: Session, reply: Reply, start: int) -> None:
    """Let the reply see, but not say, what its reader has already."""
    if start:
        reply.piece(session.between(0, start))


def _key(request: web.Request, body: bytes) -> tuple[Key | None, bool]:
    """What makes two attempts the same, and whether this one may join an earlier one.

    Clients that mark their retries count them in a header, 0 for the first attempt; others are never taken for one.
    """
    authorization = authorization_of(request)
    if sent := request.headers.get("Idempotency-Key"):
        return key_of(sent, authorization, request.path, body), True
    if (attempt := request.headers.get("x-stainless-retry-count")) is None:
        return None, False
    return key_of_body(authorization, request.path, body), attempt not in ("", "0")


def checked(end: End) -> Finished:
    """The end of an answer that is whole; anything else is raised, never passed off as one."""
    if isinstance(end, Failed):
        raise end.error
    if not isinstance(end, Finished) or end.reason == "cancelled":
        raise Unavailable("The node stopped before this answer was finished.")
    return end


def _reason(end: End | None) -> str:
    return end.reason if isinstance(end, Finished) else type(end).__name__.lower()
