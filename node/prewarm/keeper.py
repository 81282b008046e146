"""Warm prefixes as a stage on a request's way: a TokenSource between admission and the worker.

A request whose beginning is on disk and not in memory is held back for the milliseconds that loading takes, if the
engine would need longer to read it; any other one goes straight on. What ends is noted, so that `warmer` knows what is
in memory and when the node is idle. At a graceful stop the states of generations that will go on in the next life are
stored as well, whoever they belong to: their texts are on the same disk already.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from node.engine.blocks import Ids, Owner
from node.errors import NodeError
from node.generation import Caller, Embedded, Event, Failed, Finished, Request, Sink, Started, TokenSource, Warmth
from node.prewarm.history import History
from node.prewarm.stock import Stock
from node.prewarm.warmer import Warmer
from node.settings import Prewarm

log = logging.getLogger(__name__)

_REMEMBERED = 256  # ends of late prompts, as many as the history knows
_OPEN_S = 2.0  # how long a start waits for the folder of states: a big model is hashed for longer, once
_STOP_S = 5.0  # how long a stop may take to store states


class _Waiting:
    """A request that waits for a state from disk."""

    def __init__(self, request: Request, sink: Sink) -> None:
        self.request = request
        self.sink = sink
        self.held = False


class Keeper:
    """`start` it after the engine, `stop` it before. Belongs to the event loop's thread."""

    def __init__(self, settings: Prewarm, source: TokenSource, history: History, stock: Stock) -> None:
        self._settings = settings
        self._source = source
        self._history = history
        self._stock = stock
        self._warmer = Warmer(settings, history, stock, self._held_ends, lambda: not self._running)
        self._running: set[str] = set()
        self._waiting: dict[str, _Waiting] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._folder: Path | None = None
        self._opening: asyncio.Task[None] | None = None
        self._warming: asyncio.Task[None] | None = None
        self._ends: OrderedDict[int, tuple[Owner, Ids]] = OrderedDict()
        self._counts = Warmth()

    async def start(self, folder: Path | None, fingerprint: Callable[[Path], str]) -> None:
        """Load the history, open the folder of states (None: nothing is stored), begin to warm; raises StoreFailed.

        `fingerprint` may take long and is called in a thread.
        """
        await self._history.load()
        self._ends.clear()  # of prompts that came before, and have other numbers now
        await self._stock.ask_engine()
        self._folder = folder
        if folder is not None and self._stock.usable and self._settings.enabled:
            self._opening = self._spawn(self._stock.open_shelf(folder, fingerprint))
            await asyncio.wait({self._opening}, timeout=_OPEN_S)
        if not self._settings.enabled:
            await self._erase_at_start()
        elif not self._stock.usable:
            log.warning("this model cannot begin with a warm prefix; every prompt is read in full")
        else:
            self._warming = self._spawn(self._warmer.run())

    async def let_go(self) -> None:
        """Give history and folder up to another keeper, with all that is to be there; requests still pass.

        What is stored from then on would be stored twice, so nothing is.
        """
        for task in (self._opening, self._warming):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._store([])
        await self._history.let_go()
        await self._stock.close_shelf()
        self._folder = None

    def pin(self, ids: Iterable[int]) -> None:
        """Every tenant's prompts may begin so: have it warm from the start. Before `start`."""
        if self._settings.enabled:
            self._history.pin(tuple(ids))

    async def stop(self, suspended: Iterable[Request] = ()) -> None:
        """Store what the plan wants on disk, and what `suspended` requests have read and said, then end."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._store(suspended)
        await self._history.close()

    async def _store(self, suspended: Iterable[Request]) -> None:
        try:
            async with asyncio.timeout(_STOP_S):
                for request in suspended:
                    owner, ids = self._owner(request.caller), _ids((*request.prompt, *request.continued))
                    await self._stock.save(owner, ids[:-1], self._settings.disk_bytes)
                await self._warmer.store_rest()
        except (TimeoutError, NodeError) as error:
            log.warning("not every warm prefix was stored", extra={"reason": str(error) or "it took too long"})

    async def forget(self) -> int:
        """Erase history and states, in memory and on disk; gives how many prefixes were known. See `history`."""
        known = await self._history.forget()
        self._ends.clear()
        self._warmer.forget()
        if self._opening is not None:  # what it finds is to go, too
            await asyncio.wait({self._opening})
        await self._stock.forget(self._folder)
        return known

    async def _erase_at_start(self) -> None:
        try:
            await self._stock.forget(self._folder)
        except OSError as error:
            log.warning("states that were stored before could not be erased", extra={"reason": str(error)})

    def submit(self, request: Request, sink: Sink) -> None:
        """See TokenSource."""
        owner, ids = self._owner(request.caller), _ids((*request.prompt, *request.continued))
        end = self._history.note(request)
        self._warmer.nudge(prompt=end is not None)
        watching = self._watching(request, sink, owner, ids, end)
        if request.kind == "generate" and self._stock.worth_loading(owner, ids[:-1]):
            self._running.add(request.id)
            self._waiting[request.id] = _Waiting(request, watching)
            self._spawn(self._load_first(request, owner, ids[:-1]))
        else:
            self._pass_on(request, watching)

    def cancel(self, request_id: str) -> None:
        """See TokenSource."""
        if waiting := self._waiting.pop(request_id, None):
            end = Finished("cancelled", len(waiting.request.prompt), 0)
            asyncio.get_running_loop().call_soon(waiting.sink, end)
        else:
            self._source.cancel(request_id)

    def hold(self, request_id: str, held: bool) -> None:
        """See TokenSource."""
        if waiting := self._waiting.get(request_id):
            waiting.held = held
        else:
            self._source.hold(request_id, held)

    @property
    def prefill_s(self) -> float:
        """Seconds that reading a token of a prompt takes, as measured."""
        return self._stock.costs.prefill_s

    def warm_share(self, prompt: tuple[int, ...], caller: Caller) -> float:
        """What part of a prompt this node need not read for this caller."""
        if not self._stock.usable or not prompt:
            return 0.0
        owner, ids = self._owner(caller), _ids(prompt)
        return max(self._stock.in_memory(owner, ids), self._stock.on_disk(owner, ids)) / len(prompt)

    def shared(self) -> Iterator[tuple[Owner, list[int]]]:
        """Prefixes that many prompts begin with, as far as they are warm, and whose they are; no single user's."""
        return self._warmer.shared()

    def relieve(self, most: int | None, free: int | None) -> None:
        """Give memory back while less than a tenth of the machine's is free; both as bytes, None where unknown."""
        if most is not None and free is not None:
            self._stock.memory.confine(self._stock.memory.bytes + free - most // 10)

    @property
    def warmth(self) -> Warmth:
        """What warm prefixes have done, and what they take now."""
        stock = self._stock
        return dataclasses.replace(
            self._counts,
            memory_bytes=stock.memory.bytes,
            disk_bytes=stock.disk_bytes,
            evictions=stock.memory.evictions,
            loads=stock.loads,
            saves=stock.saves,
        )

    def status(self) -> dict[str, Any]:
        """The same and the budgets, for people."""
        settings, history = self._settings, self._history.figures
        return {
            "enabled": settings.enabled,
            "usable": self._stock.usable,
            **dataclasses.asdict(self.warmth),
            "memory_budget": self._stock.memory.budget,
            "disk_budget": settings.disk_bytes if self._stock.shelf else 0,
            "prefill_ms_per_token": round(self._stock.costs.prefill_s * 1000, 3),
            "load_ms_per_token": round(self._stock.costs.load_s * 1000, 4),
            "history": {"prefixes": history.shared, "nodes": history.nodes, "bytes": history.bytes},
        }

    def why(self) -> list[dict[str, Any]]:
        """Every decision of the latest plan, the most saving first, and how many of its tokens are where."""
        return self._warmer.explain()

    def _owner(self, caller: Caller) -> Owner:
        return self._stock.memory.owner(caller.tenant)

    def _pass_on(self, request: Request, sink: Sink) -> None:
        self._source.submit(request, sink)
        self._running.add(request.id)

    async def _load_first(self, request: Request, owner: Owner, ids: Ids) -> None:
        started = time.monotonic()
        await self._stock.load(owner, ids)
        self._count(saved_s=started - time.monotonic())
        waiting = self._waiting.get(request.id)
        if waiting is None or waiting.request is not request:  # it was cancelled; one of its id may have come since
            return
        del self._waiting[request.id]
        try:
            self._source.submit(request, waiting.sink)
        except NodeError as error:
            waiting.sink(Failed(error))
            return
        if waiting.held:
            self._source.hold(request.id, True)

    def _watching(self, request: Request, sink: Sink, owner: Owner, ids: Ids, end: int | None) -> Sink:
        kept = None if end is None else (end, owner, ids)  # its ids may be many, and nobody needs them else

        def watch(event: Event) -> None:
            if isinstance(event, Started) and request.kind == "generate":
                self._began(len(request.prompt), event.cached_tokens)
            elif isinstance(event, Finished | Embedded | Failed):
                self._running.discard(request.id)
                if kept is not None:
                    self._ends[kept[0]] = kept[1:]
                    self._ends.move_to_end(kept[0])
                    if len(self._ends) > _REMEMBERED:
                        self._ends.popitem(last=False)
                self._warmer.nudge()
            sink(event)

        return watch

    def _began(self, tokens: int, cached: int) -> None:
        self._count(
            requests=1,
            hits=int(cached > 0),
            prompt_tokens=tokens,
            cached_tokens=cached,
            saved_s=cached * self._stock.prefill_s,
        )

    def _count(self, **more: float) -> None:
        values = {name: getattr(self._counts, name) + value for name, value in more.items()}
        self._counts = dataclasses.replace(self._counts, **values)

    def _held_ends(self) -> list[int]:
        """Ends of late prompts all of which is in memory."""
        for end, (owner, ids) in list(self._ends.items()):
            if self._stock.in_memory(owner, ids) < len(ids) - 1:
                del self._ends[end]
        return list(self._ends)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _ids(tokens: tuple[int, ...]) -> Ids:
    return np.array(tokens, np.int32)
