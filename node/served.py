"""Which model is served now, and how another one takes its place while requests run.

Beside: the new one is loaded, decodes a token and passes its examination while the old one goes on; then new requests
go to the new one, and the old one stays until its last stream has ended. What fails before that moment changes nothing.

Instead, where there is no memory for two: new requests wait at the door, what runs finishes, the old one goes, the new
one comes; if it does not, the old one is loaded again, and again, until it serves.

A request belongs to the model that made its tokens: `source_of` finds that one also when another is served by now.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager

from node.errors import NodeError, Unavailable
from node.fleet.pinned import Pinned
from node.generation import Model, Request, TokenSource
from node.serving import Serving
from node.settings import Settings

log = logging.getLogger(__name__)

PATIENCE_S = 120.0  # how long a request waits at the door
LINGER_S = 1.0  # of quiet before the old model goes: somebody may still be tokenizing for it
_AGAIN_S = 2.0

Accept = Callable[[Model, TokenSource], Awaitable[None]]
Make = Callable[[Settings, Pinned | None], Serving]
Front = Callable[[Serving], TokenSource]


class Served:
    """`current` and what still finishes. `make` makes a model's parts, `front` puts the node's stages before them."""

    def __init__(self, current: Serving, make: Make, front: Front) -> None:
        self.current = current
        self.entry: TokenSource | None = None
        self._make, self._front = make, front
        self._open = asyncio.Event()
        self._open.set()
        self._exchanging = asyncio.Lock()
        self._old: list[Serving] = []
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def model(self) -> Model:
        """The one that is served."""
        return self.current.model

    @property
    def source(self) -> TokenSource:
        """Its own queue: who is asked here is this model and nobody else."""
        return self.current.reception.gate

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits."""
        return self.current.idle

    @property
    def broken(self) -> bool:
        """Whether the engine has given up."""
        return self.current.worker.broken

    @property
    def old(self) -> int:
        """How many exchanged models still finish their streams."""
        return len(self._old)

    async def start(self) -> None:
        """Load the first model; raises OperatorError."""
        await self.current.load()
        self.refront()

    def refront(self) -> None:
        """The stages before the queue are others now."""
        self.entry = self._front(self.current)

    async def settled(self) -> None:
        """Wait while there is no model to ask; raises Unavailable when that takes too long."""
        if self._open.is_set():
            return
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._open.wait()
        except TimeoutError:
            raise Unavailable("This node's model is being exchanged; come back soon.", retry_after=5) from None

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Who asks meanwhile waits; see `settled`."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    def source_of(self, model: Model) -> TokenSource:
        """Where requests that were made with this model go in; raises Unavailable when it is gone."""
        if model is self.current.model and self.entry is not None:
            return self.entry
        for old in self._old:
            if old.model is model:
                return old.source
        raise Unavailable("The model was just exchanged for another one; ask again.", retry_after=1)

    async def exchange(
        self, settings: Settings, pinned: Pinned | None, accept: Accept, *, beside: bool, drain_s: float
    ) -> None:
        """Serve another model if it loads and `accept` does not raise; else what served before serves on.

        Not `beside`, running streams get `drain_s` to finish; raises Unavailable, and changes nothing, if they do not.
        """
        async with self._exchanging:
            new = self._make(settings, pinned)
            await (self._beside(new, accept) if beside else self._instead(new, accept, drain_s))
        log.info("another model is served", extra={"model": new.model.info.id, "beside": beside})

    async def stop(self, suspended: Iterable[Request] = ()) -> None:
        """End all of them; `suspended` go on in the next life."""
        for task in self._leaving:
            task.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        for old in self._old:
            await old.stop()
        if self.entry is not None:
            await self.current.stop(suspended)

    async def _beside(self, new: Serving, accept: Accept) -> None:
        await _loaded(new, accept)
        old = self.current
        self._old.append(old)
        self._serve(new)
        await old.let_go()
        await self._keep(new)
        task = asyncio.create_task(self._leave(old))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _instead(self, new: Serving, accept: Accept, drain_s: float) -> None:
        with self.closed():
            old = self.current
            await _quiet(old, drain_s)
            await old.stop()
            try:
                await _loaded(new, accept)
            except BaseException:
                await self._restore(old)
                raise
            self._serve(new)
            await self._keep(new)
            _unpin(old)

    async def _restore(self, old: Serving) -> None:
        """What served before serves again; there is nothing better to do until it does."""
        while True:
            again = self._make(old.settings, old.pinned)
            try:
                await _loaded(again, _anything)
                break
            except NodeError as error:
                log.error("the former model does not load; trying again", extra={"reason": error.message})
                await asyncio.sleep(_AGAIN_S)
        self._serve(again)
        await self._keep(again)

    def _serve(self, serving: Serving) -> None:
        self.current = serving
        self.refront()

    async def _keep(self, serving: Serving) -> None:
        try:
            await serving.keep()
        except NodeError as error:
            log.error("the history of prompts cannot be taken up", extra={"reason": error.message})

    async def _leave(self, old: Serving) -> None:
        """Let an exchanged model finish, then free it."""
        await _quiet(old, None)
        await old.drain(0)
        await old.stop()
        self._old.remove(old)
        _unpin(old)
        log.info("the former model is gone", extra={"model": old.model.info.id})


async def _loaded(serving: Serving, accept: Accept) -> None:
    """Load it and see it work; nothing is left of it when it does not."""
    try:
        await serving.load()
        await serving.decode_one_token()
        await accept(serving.model, serving.reception.gate)
    except BaseException:
        await serving.stop()
        raise


def _unpin(serving: Serving) -> None:
    """It will not be loaded again."""
    if serving.pinned is not None:
        serving.pinned.close()


async def _quiet(serving: Serving, most_s: float | None) -> None:
    """Nothing runs, waits, or is about to be asked; raises Unavailable if that is not so in time."""
    try:
        async with asyncio.timeout(most_s):
            while True:
                await serving.reception.gate.drained()
                await serving.crossing.drained()
                await asyncio.sleep(LINGER_S)
                if serving.idle:
                    return
    except TimeoutError:
        raise Unavailable("Streams still run, and there is no memory for a second model.", retry_after=60) from None


async def _anything(model: Model, source: TokenSource) -> None:
    """It served before."""
