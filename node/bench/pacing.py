"""What the two buffers of a stream do for a reader on a bad link: the playout buffer and the pacer, in virtual time.

Tokens are made at an even rate and sent through measured delays, in order, as over TCP: one that is late holds up all
behind it. The reader sees them as they come, or through a playout buffer. The pacer is put before a link that takes
fewer bytes than one frame a token needs; without it they queue up, and the answer falls further and further behind.
"""

from __future__ import annotations

import csv
import itertools
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from node.bench.figures import percentile
from node.bench.report import Figure
from node.errors import OperatorError
from node.stream.pacer import Look, Pacer
from node.stream.playout import Playout
from node.stream.quality import READING_RATE, experience, stall_ratio

RATE = 20.0  # tokens a second
ANSWER_TOKENS = 200
CLEAN_ADDED_MS = 20.0
STALLS_LEFT = 0.5
SLOW_LINK = 2000.0  # bytes a second
FRAME_BYTES, TOKEN_BYTES = 230, 5

Trace = Sequence[tuple[float, float]]  # (when sent, how long it took), seconds


@dataclass(frozen=True, slots=True)
class Seen:
    """One stream: when its tokens came, and when they were shown."""

    asked: float
    came: list[float]
    shown: list[float]

    @property
    def added_s(self) -> float:
        """The mean delay that showing them evenly cost."""
        return statistics.fmean(show - come for come, show in zip(self.came, self.shown, strict=True))


def read_trace(path: Path) -> Trace:
    """A CSV file with the columns pub_ms and delay_ms."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            trace = [(float(row["pub_ms"]) / 1000, float(row["delay_ms"]) / 1000) for row in csv.DictReader(file)]
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise OperatorError(f"{path} is not a table of pub_ms and delay_ms: {error}.") from error
    if len(trace) < 2:
        raise OperatorError(f"{path} holds no delays.")
    return trace


def drawn_trace(seed: int = 1, seconds: float = 120.0) -> Trace:
    """A car on a country road, drawn: 30 ms, and every five seconds or so nothing for most of a second."""
    chance, trace, blocked_until, next_at = random.Random(seed), [], 0.0, 10.0
    for number in range(int(seconds * RATE)):
        at = number / RATE
        if at >= next_at:
            blocked_until = at + chance.expovariate(1 / 0.8)
            next_at = blocked_until + chance.expovariate(1 / 5.0)
        trace.append((at, max(0.0, blocked_until - at) + chance.uniform(0.025, 0.035)))
    return trace


def clean_trace(seed: int = 1, seconds: float = 60.0) -> Trace:
    """20 ms, give or take three."""
    chance = random.Random(seed)
    return [(number / RATE, chance.uniform(0.017, 0.023)) for number in range(int(seconds * RATE))]


def arrivals(trace: Trace, start: float = 0.0, tokens: int | None = None) -> list[float]:
    """When tokens come that are made from `start` on, at most until the trace ends."""
    came: list[float] = []
    number, last = 0, 0.0
    for made in itertools.count():
        at = start + made / RATE
        if at > trace[-1][0] or made == tokens:
            return came
        while number + 1 < len(trace) and trace[number + 1][0] <= at:
            number += 1
        last = max(last, at + trace[number][1])
        came.append(last)
    raise AssertionError("counting never ends")


def play(came: Sequence[float], playout: Playout) -> list[float]:
    """When tokens are shown that come at these times."""
    playout.begin()
    shown: list[float] = []
    for number, at in enumerate(came):
        _show(playout, at, shown)
        playout.put(number, "word ", at)
        shown += [at] * len(playout.take(at))
    if came:
        playout.finish(came[-1])
        _show(playout, math.inf, shown)
    return shown


def _show(playout: Playout, until: float, shown: list[float]) -> None:
    """Everything that is due before `until`."""
    now = -math.inf
    while (due := playout.next_at(now)) is not None and due < until:
        now = due
        shown += [now] * len(playout.take(now))


def answers(trace: Trace) -> list[Seen]:
    """Answers of ten seconds, one every five, all through one playout buffer as in a conversation."""
    playout, seen = Playout(), []
    for start in range(0, int(trace[-1][0]) - 10, 5):
        came = arrivals(trace, start, ANSWER_TOKENS)
        seen.append(Seen(start, came, play(came, playout)))
    return seen


def through_link(rate: float, trip_s: float, tokens: int, pacer: Pacer | None) -> list[float]:
    """How late each token is on a link that takes `rate` bytes a second; without a pacer every token goes at once."""
    link, made, late, looks = _Link(rate, trip_s), [number / RATE for number in range(tokens)], list[float](), 0.0
    while len(late) < tokens:
        now = max(made[len(late)], looks)
        waiting = sum(at <= now for at in made[len(late) :])
        count = waiting if pacer is None else _may_go(pacer, link, now) // TOKEN_BYTES
        if pacer is not None and not count:
            looks = pacer.look_at
            continue
        count = 1 if pacer is None else min(waiting, count)
        arrived = link.write(FRAME_BYTES + count * TOKEN_BYTES, now)
        if pacer is not None:
            pacer.wrote(FRAME_BYTES + count * TOKEN_BYTES, now)
        late += [arrived - at for at in made[len(late) : len(late) + count]]
    return late


def _may_go(pacer: Pacer, link: _Link, now: float) -> int:
    if now >= pacer.look_at:
        pacer.heard(link.look(now), now)
    return pacer.room()


class _Link:
    """A queue that is drained evenly; what was read is known a round trip later."""

    def __init__(self, rate: float, trip_s: float) -> None:
        self._rate, self._trip_s = rate, trip_s
        self._free_at = 0.0
        self._frames: list[tuple[float, float, int]] = []  # begin, end, bytes

    def write(self, size: int, now: float) -> float:
        """Queue so many bytes; gives when the last one arrives."""
        begin = max(now, self._free_at)
        self._free_at = begin + size / self._rate
        self._frames.append((begin, self._free_at, size))
        return self._free_at + self._trip_s / 2

    def look(self, now: float) -> Look:
        """What TCP would show."""
        known = now - self._trip_s
        self._frames = [frame for frame in self._frames if frame[1] > known]
        unread = sum(size * min(1.0, (end - known) / (end - begin)) for begin, end, size in self._frames)
        return Look(math.ceil(unread), self._trip_s + max(0.0, self._free_at - now), self._trip_s / 10)


def figures(trace: Trace) -> list[Figure]:
    """Everything that is promised, and what it costs."""
    whole = arrivals(trace)
    drive = Seen(0.0, whole, play(whole, Playout()))
    calm = arrivals(clean_trace())
    clean = Seen(0.0, calm, play(calm, Playout()))
    return [
        _stalls("stalls of one long answer, with playout / without", [drive], STALLS_LEFT),
        Figure("added by playout, mean", drive.added_s * 1000, "ms", detail=_qualities([drive])),
        _stalls(f"stalls of answers of {ANSWER_TOKENS} tokens", answers(trace), None),
        Figure("added by playout on a clean link", clean.added_s * 1000, "ms", at_most=CLEAN_ADDED_MS),
        _slow_link(),
    ]


def _stalls(name: str, seen: Sequence[Seen], at_most: float | None) -> Figure:
    bare, buffered = (statistics.fmean(stall_ratio(getattr(one, times)) for one in seen) for times in ("came", "shown"))
    added = statistics.fmean(one.added_s for one in seen)
    detail = f"stall ratio {buffered:.3f} / {bare:.3f}, {added * 1000:.0f} ms added"
    return Figure(name, buffered / bare if bare else 0.0, at_most=at_most, detail=detail)


def _qualities(seen: Sequence[Seen]) -> str:
    """Andes' quality for those who read as fast as most, and for those who skim as fast as tokens are made."""
    words = []
    for rate in (READING_RATE, RATE):
        shown, came = (
            statistics.fmean(experience(getattr(one, times), one.asked, rate=rate) for one in seen)
            for times in ("shown", "came")
        )
        words.append(f"{shown:.3f} / {came:.3f} at {rate:g} tokens/s")
    return f"QoE {', '.join(words)}"


def _slow_link() -> Figure:
    tokens, trip_s = 600, 0.2
    paced = percentile(through_link(SLOW_LINK, trip_s, tokens, Pacer()), 0.95)
    bare = percentile(through_link(SLOW_LINK, trip_s, tokens, None), 0.95)
    detail = (
        f"{bare:,.1f} s when every token goes at once, which needs {RATE * (FRAME_BYTES + TOKEN_BYTES):,.0f} bytes/s"
    )
    return Figure(f"p95 delay, paced, at {SLOW_LINK:,.0f} bytes/s", paced * 1000, "ms", detail=detail)
