"""Coming back for an answer: GET and DELETE /v1/streams/{id}, and what a dead process left unfinished.

A reader resumes at any number, as often as it likes, from memory or from the store. What cannot be given is said: an
unknown id is 404, an evicted one 410, another key's 403; a number beyond the end of an ended answer, or beyond what a
power cut left, is 409 with the last number that stands.
"""

from __future__ import annotations

import asyncio
import logging
import re
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace

from aiohttp import web

from node.errors import Conflict, InvalidRequest, NodeError, NotFound, Unavailable
from node.generation import Failed, Request, Service
from node.server.answer import Answerer, ahead
from node.server.boundary import json_response
from node.server.chat import Completions
from node.server.replies import encode
from node.server.work import Running
from node.settings import Settings
from node.store.streams import StoredStream, StreamStore
from node.stream.session import Session

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PRUNE_S = 60.0

log = logging.getLogger(__name__)


class Streams:
    """The routes, and the second life of unfinished generations."""

    def __init__(
        self,
        settings: Settings,
        service: Service,
        answerer: Answerer,
        completions: Completions,
        store: StreamStore | None,
    ) -> None:
        self._settings = settings
        self._service = service
        self._answerer = answerer
        self._completions = completions
        self._store = store

    def add_to(self, app: web.Application) -> None:
        """Add both routes, and the sweep that keeps the store in its bounds."""
        app.router.add_get("/v1/streams/{id}", self._resume)
        app.router.add_delete("/v1/streams/{id}", self._stop)
        app.cleanup_ctx.append(self._sweeping)

    async def resume_unfinished(self) -> int:
        """Go on with what a dead process left; returns how many. One that cannot go on ends as failed."""
        unfinished = [] if self._store is None else await self._store.unfinished()
        for stored in unfinished:
            if stored.request.id not in self._answerer.live:
                await self._go_on(stored)
        return len(unfinished)

    def suspend(self) -> list[Request]:
        """This process stops: what is resumable stays unfinished in the store and goes on in the next life.

        Gives these requests, each with what it has said.
        """
        sessions = [running.session for running in self._answerer.live.values()] if self._store is not None else []
        unfinished = [session for session in sessions if session.end is None]
        for session in unfinished:
            session.suspend(Unavailable("This node is restarting; resume the stream.", retry_after=5))
        return [replace(one.request, continued=tuple(token.id for token in one.tokens)) for one in unfinished]

    async def _go_on(self, stored: StoredStream) -> None:
        source = self._service.source
        session = Session(stored.request, source, self._store, stored.entries)
        try:
            work = await asyncio.to_thread(self._completions.rebuild, stored)
            session.request = work.request
            source.submit(work.request, session.feed)
        except NodeError as error:
            log.warning("a generation cannot go on", extra={"id": stored.request.id, "reason": error.message})
            session.feed(Failed(error))
            return
        log.info("generation continued", extra={"id": stored.request.id, "from": session.count})
        self._answerer.adopt(Running(work, session, stored.owner, resumable=True))

    async def _resume(self, request: web.Request) -> web.StreamResponse:
        id, owner = request.match_info["id"], self._answerer.identity.owner(request)
        running, start, rewind = await self.find_from(id, owner, _start(request), _checksum(request.query.get("crc")))
        return await self._answerer.follow(request, running, True, start, rewind=rewind)

    async def find_from(
        self, id: str, owner: bytes, start: int, checksum: int | None = None
    ) -> tuple[Running, int, bool]:
        """A generation to be read from entry `start`: it, where to begin, and whether the reader must go back there.

        `checksum` is the CRC-32 of the text that the reader has. After a power cut the node may have made other text
        under the same numbers; then the reader must begin again, or it would mix two texts.
        """
        running = await self._find(id, owner)
        count = running.session.count
        if checksum is not None and 0 < start <= count:
            if zlib.crc32(running.session.between(0, start).text.encode()) != checksum:
                raise ahead(-1)
        rewind = start > count
        if rewind:
            if running.session.end is not None:
                raise Conflict(f"This answer has ended; its last entry is number {count - 1}.", param="from")
            if self._settings.streams.when_ahead == "refuse":
                raise ahead(count - 1)
            start = count
        return running, start, rewind

    async def _stop(self, request: web.Request) -> web.StreamResponse:
        running = await self._find(request.match_info["id"], self._answerer.identity.owner(request))
        stopped = running.session.end is None
        running.session.cancel()
        await running.session.finished()
        told = {"id": running.work.request.id, "stopped": stopped, "count": running.session.count}
        return json_response(encode(told))

    async def _find(self, id: str, owner: bytes) -> Running:
        if not _ID.fullmatch(id):
            raise NotFound("There is no generation of that id.", param="id")
        if (running := self._answerer.live.get(id)) and running.owner == owner:
            return running
        if self._store is None:
            raise NotFound(f"There is no generation {id}; this node keeps none on disk.", param="id")
        stored = await self._store.load(id, owner)
        if (running := self._answerer.live.get(id)) and running.owner == owner:
            return running  # it was taken up while the store was read
        if stored.end is None:
            # The port is open before a new life has taken up what the last one left.
            raise Unavailable("This generation is about to go on; come back for it.", retry_after=1)
        await self._service.settled()
        work = await asyncio.to_thread(self._completions.rebuild, stored)
        session = Session.ended(stored.request, stored.entries, stored.end)
        return Running(work, session, owner, resumable=True, counted=True)

    async def _sweeping(self, app: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self._sweep())
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _sweep(self) -> None:
        while self._store is not None:
            await asyncio.sleep(_PRUNE_S)
            try:
                if evicted := await self._store.prune():
                    log.info("old generations evicted", extra={"count": evicted})
            except NodeError as error:
                log.error("the store cannot be pruned", extra={"reason": error.message})


def _start(request: web.Request) -> int:
    """The first wanted number: `from`, or the one after Last-Event-ID."""
    if (sent := request.query.get("from")) is not None:
        return _number(sent, "from")
    if last := request.headers.get("Last-Event-ID"):
        return _number(last, "Last-Event-ID") + 1
    return 0


def _checksum(text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch("[0-9a-f]{8}", text):
        raise InvalidRequest("`crc` must be a CRC-32 in eight hexadecimal digits.", param="crc")
    return int(text, 16)


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise InvalidRequest(f"`{name}` must be a whole number from 0 to 999999999.", param=name)
    return int(text)
