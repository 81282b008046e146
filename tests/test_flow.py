"""Events through a playout buffer: the real one, and one that shows what the contract allows at most."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from node.answer import Done, TextDelta, TextRewind
from node.chunks import BrokenStream
from node.flow import Event, Playout, flowing
from node.stream.playout import Playout as RealPlayout

DONE = Done("stop", None, 0.1, 1.0, None, "m", "c1")
Step = Event | float | Exception


class Steady:
    """One word every `gap_s`, whatever arrives."""

    def __init__(self, gap_s: float = 0.02) -> None:
        self.gap_s = gap_s
        self.waiting: list[tuple[int, str]] = []
        self.due = -math.inf
        self.begun = 0

    def begin(self) -> None:
        self.begun += 1
        self.waiting.clear()

    def put(self, seq: int, text: str, now: float) -> None:
        self.due = max(self.due, now)
        self.waiting += [(seq, f"{word} ") for word in text.split()]

    def take(self, now: float) -> list[tuple[int, str]]:
        taken = []
        while self.waiting and self.due <= now:
            self.due += self.gap_s
            taken.append(self.waiting.pop(0))
        return taken

    def next_at(self, now: float) -> float | None:
        return max(now, self.due) if self.waiting else None

    def finish(self, now: float) -> None:
        self.gap_s = 0.001


async def play(*steps: Step, closed: list[bool] | None = None) -> AsyncGenerator[Event, None]:
    try:
        for step in steps:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, float):
                await asyncio.sleep(step)
            else:
                yield step
    finally:
        if closed is not None:
            closed.append(True)


def piece(seq: int, text: str) -> TextDelta:
    return TextDelta(text, 0.0, seq)


async def collect(events: AsyncGenerator[Event, None], seen: list[Event] | None = None) -> list[Event]:
    seen = [] if seen is None else seen
    async with asyncio.timeout(10), aclosing(events):
        async for event in events:
            seen.append(event)
    return seen


def said(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


@pytest.mark.parametrize("kind", [Steady, RealPlayout])
async def test_all_text_comes_in_order_and_then_the_end(kind: type[Playout]) -> None:
    burst = [piece(number, f"word{number} ") for number in range(30)]
    events = await collect(flowing(play(*burst[:10], 0.1, *burst[10:], 0.05, DONE), kind()))
    assert said(events) == said(list(burst))
    assert events[-1] == DONE
    assert [event.seq for event in events if isinstance(event, TextDelta)] == list(range(30))


async def test_a_burst_becomes_a_flow() -> None:
    shown = asyncio.Event()

    async def source() -> AsyncGenerator[Event, None]:
        yield piece(9, "a b c d e ")
        await shown.wait()
        yield DONE

    began, times = time.perf_counter(), []
    async with aclosing(flowing(source(), Steady())) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                times.append(event.at - began)
            if len(times) == 5:
                shown.set()
    assert len(times) == 5
    assert all(at >= 0.02 * number for number, at in enumerate(times)), "none before its time"


async def test_the_end_does_not_wait_for_its_text_at_reading_speed() -> None:
    async with asyncio.timeout(30):
        events = await collect(flowing(play(piece(0, "a " * 100), DONE), Steady(gap_s=0.5)))
    assert said(events) == "a " * 100


async def test_what_is_taken_back_was_shown_before() -> None:
    steps = (piece(0, "a "), piece(1, "b "), piece(2, "c "), TextRewind(0, "b c ", 0.0), piece(1, "d "), DONE)
    events = await collect(flowing(play(*steps), Steady(gap_s=0.2)))
    told = [event.text if isinstance(event, TextDelta) else type(event).__name__ for event in events]
    assert told == ["a ", "b ", "c ", "TextRewind", "d ", "Done"]


async def test_an_error_comes_after_the_text_before_it() -> None:
    seen: list[Event] = []
    with pytest.raises(BrokenStream):
        await collect(flowing(play(piece(0, "a b c "), BrokenStream("m")), Steady()), seen)
    assert said(seen) == "a b c "


async def test_text_without_a_number_keeps_none() -> None:
    events = await collect(flowing(play(TextDelta("a ", 0.0), DONE), Steady()))
    assert events[0] == TextDelta("a ", events[0].at, None)  # type: ignore[union-attr]


async def test_leaving_closes_what_is_read() -> None:
    closed: list[bool] = []
    async with aclosing(flowing(play(piece(0, "a "), 30.0, DONE, closed=closed), Steady())) as events:
        await anext(events)
    assert closed == [True]


async def test_one_buffer_serves_one_answer_after_the_other() -> None:
    buffer = Steady()
    for _ in range(2):
        assert said(await collect(flowing(play(piece(0, "a "), DONE), buffer))) == "a "
    assert buffer.begun == 2
