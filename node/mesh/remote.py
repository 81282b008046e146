"""Something behind a network as a TokenSource: a task for each request, holding, cancelling, and every way to fail.

Whatever goes wrong out there becomes one `Failed` with an UpstreamFailed, or with the upstream's own refusal. A held
request is not read from any more, so that the connection fills up and the other side waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Protocol

import aiohttp

from node.errors import NodeError, UpstreamFailed
from node.generation import Embedded, Event, Failed, Finished, Request, Sink

log = logging.getLogger(__name__)


class Upstream(Protocol):
    """What can be asked over a network."""

    name: str

    def answer(self, request: Request, held: Held) -> AsyncIterator[Event]:
        """The answer's events; raises NodeError, aiohttp.ClientError, OSError or TimeoutError. Look at `held`."""


class Held:
    """Whether a request's reader lags."""

    def __init__(self) -> None:
        self._free = asyncio.Event()
        self._free.set()

    def set(self, held: bool) -> None:
        """It lags, or has caught up."""
        if held:
            self._free.clear()
        else:
            self._free.set()

    async def wait(self) -> bool:
        """Until it does not lag; whether that took any time."""
        lagged = not self._free.is_set()
        await self._free.wait()
        return lagged


class Remote:
    """`upstream` as a TokenSource; belongs to the event loop's thread."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._running: dict[str, tuple[asyncio.Task[None], Held, Sink, int]] = {}

    def submit(self, request: Request, sink: Sink) -> None:
        held = Held()
        task = asyncio.get_running_loop().create_task(self._run(request, sink, held))
        task.add_done_callback(_ended)
        self._running[request.id] = task, held, sink, len(request.prompt)

    def cancel(self, request_id: str) -> None:
        if entry := self._running.pop(request_id, None):
            task, _, sink, size = entry
            task.cancel()
            asyncio.get_running_loop().call_soon(sink, Finished("cancelled", size, 0))

    def hold(self, request_id: str, held: bool) -> None:
        if entry := self._running.get(request_id):
            entry[1].set(held)

    async def close(self) -> None:
        """Stop all of them; nobody is told."""
        tasks = [entry[0] for entry in self._running.values()]
        self._running.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, request: Request, sink: Sink, held: Held) -> None:
        end: Event = Failed(UpstreamFailed(f"{self._upstream.name} stopped in the middle of its answer."))
        try:
            async with contextlib.aclosing(self._upstream.answer(request, held)) as events:  # type: ignore[type-var]
                async for event in events:
                    if isinstance(event, Finished | Embedded | Failed):
                        end = event
                        break
                    sink(event)
        except NodeError as error:
            end = Failed(error)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            end = Failed(UpstreamFailed(f"{self._upstream.name} cannot be reached: {type(error).__name__}."))
        finally:  # also where something went wrong that nobody thought of: whoever waits must hear of an end
            entry = self._running.get(request.id)
            if entry is not None and entry[1] is held:  # not another one that has come under the same id since
                del self._running[request.id]
                sink(end)


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("asking elsewhere failed in a way that it should not", exc_info=error)
