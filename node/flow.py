"""An answer's events through a playout buffer: text that comes in bursts is shown in a flow. For people, not machines.

The buffer is `stream/playout.py`, or anything that keeps its contract; it is handed in, and learns about the link from
answer to answer.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Protocol

from node.answer import Done, TextDelta, TextRewind

Event = TextDelta | TextRewind | Done
_NO_NUMBER = -1


class Playout(Protocol):
    """One reader's buffer; `now` is in seconds and never goes back."""

    def begin(self) -> None:
        """A new answer."""

    def put(self, seq: int, text: str, now: float) -> None:
        """A piece arrived."""

    def take(self, now: float) -> list[tuple[int, str]]:
        """What is due: everything at infinity."""

    def next_at(self, now: float) -> float | None:
        """When something will be due; None while nothing waits."""

    def finish(self, now: float) -> None:
        """No more arrives."""


async def flowing(
    events: AsyncGenerator[Event, None], playout: Playout, clock: Callable[[], float] = time.perf_counter
) -> AsyncGenerator[Event, None]:
    """The same events, their text when it is due; an end or an error comes after all text before it."""
    playout.begin()
    arrived: asyncio.Queue[Event | None] = asyncio.Queue()
    reading = asyncio.create_task(_read(events, arrived))
    event: Event | None = None
    try:
        while not reading.done() or not arrived.empty():
            try:
                async with asyncio.timeout(_wait(playout, clock())):
                    event = await arrived.get()
            except TimeoutError:
                event = None
            if isinstance(event, TextDelta):
                playout.put(_NO_NUMBER if event.seq is None else event.seq, event.text, clock())
            # What is taken back must have been shown.
            until = math.inf if isinstance(event, TextRewind) else clock()
            for delta in _due(playout, until, clock()):
                yield delta
            if isinstance(event, TextRewind):
                yield event
        playout.finish(clock())
        while (wait := _wait(playout, clock())) is not None:
            await asyncio.sleep(wait)
            for delta in _due(playout, clock(), clock()):
                yield delta
        if (done := await reading) is not None:
            yield done
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _read(events: AsyncGenerator[Event, None], arrived: asyncio.Queue[Event | None]) -> Done | None:
    """Everything but the end goes into the queue; None wakes its reader when there is no more."""
    try:
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Done):
                    return event
                arrived.put_nowait(event)
        return None
    finally:
        arrived.put_nowait(None)


def _wait(playout: Playout, now: float) -> float | None:
    at = playout.next_at(now)
    return None if at is None else max(0.0, at - now)


def _due(playout: Playout, until: float, now: float) -> Iterator[TextDelta]:
    for seq, text in playout.take(until):
        yield TextDelta(text, now, None if seq == _NO_NUMBER else seq)
