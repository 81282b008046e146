"""Deferred requests run: a few at a time, once somebody can answer, most urgent and oldest first.

One is run as if its caller had just sent it, at the level that it named, else in the background, and with its caller's
word on where it may go. While nobody can answer, or no answer can be kept, all of them stay away for a growing,
jittered pause. What is the request's own fault (the model that it names is gone) is its answer; what broke the engine
is tried three times. The process may die at any point: what is not done runs again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable

from aiohttp import web

from node.errors import EngineFailed, Expired, NodeError, Overloaded, RateLimited, StoreFailed, Unavailable
from node.generation import Service
from node.server.answer import Answerer, checked
from node.server.callers import Wish
from node.server.chat import Completions
from node.server.replies import error_body
from node.settings import Settings
from node.store.backlog import Reconnect
from node.store.later import Deferred, LaterStore

log = logging.getLogger(__name__)

IDLE_S = 2.0  # how often to look when nobody says that there is something new
ATTEMPTS = 3  # that may break the engine
_MOST_PAUSE_S = 60.0


class LaterRuns:
    """Runs what waits in `store`, from the application's start to its end; `reconnect` spaces the attempts."""

    def __init__(
        self,
        settings: Settings,
        service: Service,
        answerer: Answerer,
        completions: Completions,
        store: LaterStore | None,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self._at_a_time = settings.outbox.later_at_a_time
        self._service = service
        self._answerer = answerer
        self._completions = completions
        self._store = store
        self._rng = rng
        self.reconnect = Reconnect(most_s=_MOST_PAUSE_S)
        self._disk = Reconnect(most_s=_MOST_PAUSE_S)
        self._wake = asyncio.Event()
        self._running: dict[str, asyncio.Task[None]] = {}

    def add_to(self, app: web.Application) -> None:
        """Run while the application does."""
        if self._store is not None:
            app.cleanup_ctx.append(self._living)

    def wake(self) -> None:
        """Something new waits."""
        self._wake.set()

    def cancelled(self, id: str) -> None:
        """Nobody wants it any more."""
        if task := self._running.get(id):
            task.cancel()

    async def _living(self, app: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run())
        yield
        for one in (task, *self._running.values()):
            one.cancel()
        await asyncio.gather(task, *self._running.values(), return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._start_some()
            except StoreFailed as error:
                log.error("deferred requests cannot be read", extra={"reason": error.message})
            pause = self.reconnect.wait_s(self._now())
            try:
                async with asyncio.timeout(pause or IDLE_S):
                    await self._wake.wait()
                    if pause:  # what is new has to wait as the others do
                        await asyncio.sleep(pause)
            except TimeoutError:
                pass

    async def _start_some(self) -> None:
        """As many as may run; right after a refusal only one, to see whether it is over."""
        assert self._store is not None
        now = self._now()
        if not self._service.ready or self.reconnect.wait_s(now) or self._disk.wait_s(now):
            return
        most = 1 if self.reconnect.failures else self._at_a_time
        while len(self._running) < most:
            deferred = await self._store.next(frozenset(self._running))
            if deferred is None:
                return
            task = asyncio.create_task(self._one(deferred))
            self._running[deferred.id] = task
            task.add_done_callback(lambda task, id=deferred.id: self._over(id, task))  # type: ignore[misc]

    def _over(self, id: str, task: asyncio.Task[None]) -> None:
        del self._running[id]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a deferred request could not be brought to its end", exc_info=error, extra={"id": id})
        self.wake()

    async def _one(self, deferred: Deferred) -> None:
        assert self._store is not None
        try:
            answer = await self._answer(deferred)
            status = 200
        except RateLimited as error:
            await self._store.postpone(deferred.id, float(error.retry_after or 1), failed=False)
            return
        except (Overloaded, Unavailable, Expired, EngineFailed) as error:
            broke = isinstance(error, EngineFailed)
            if not broke or deferred.attempts + 1 < ATTEMPTS:
                await self._again(deferred, error, broke)
                return
            status, answer = error.status, error_body(error)
        except NodeError as error:
            status, answer = error.status, error_body(error)
        self.reconnect.succeeded()
        try:
            stored = await self._store.finish(deferred, status, answer)
        except StoreFailed as error:  # what cannot be kept has to be made again, but not at once and for ever
            pause = self._disk.failed(self._now(), self._rng())
            told = {"id": deferred.id, "reason": error.message, "in_s": round(pause, 1)}
            log.error("a deferred request's answer cannot be kept and will be made again", extra=told)
            return
        self._disk.succeeded()
        log.info("deferred request answered", extra={"id": deferred.id, "status": status, "wanted": stored})
        if stored and deferred.callback:
            self._store.hurry()

    async def _again(self, deferred: Deferred, error: NodeError, broke: bool) -> None:
        assert self._store is not None
        pause = self.reconnect.failed(self._now(), self._rng(), float(error.retry_after or 0))
        log.info(
            "deferred request still waits",
            extra={"id": deferred.id, "reason": error.code, "in_s": round(pause, 1)},
        )
        if broke:
            await self._store.postpone(deferred.id, pause, failed=True)

    async def _answer(self, deferred: Deferred) -> bytes:
        """The body of its response; raises whatever its caller would have been told."""
        wish = Wish(deferred.level or "background", cloud=deferred.cloud)
        asker = self._answerer.identity.returning(deferred.user, wish)
        work = await self._completions.plan(deferred.path, deferred.request, asker)
        running = await self._answerer.begin(work, deferred.owner, resumable=False)
        with self._answerer.reading(running):
            session = running.session
            await session.changed(0)
            if session.count:  # somebody answers again, and the others need not wait for the end of this one
                self.reconnect.succeeded()
                self.wake()
            end = checked(await session.finished())
            return running.reply().whole(session.text, session.tokens, end, session.cached_tokens)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
