"""How fast an engine is: one answer, one long prompt, many answers at once; through the engine's own protocol.

What is measured is the engine as a node drives it, step by step, so that every engine can be compared with every other.
No two prompts begin alike, or an engine that keeps warm prefixes would not read them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from node.engine.base import Engine
from node.errors import EngineFailed
from node.generation import Failed, Finished, Request, Sampling, Token
from node.tuning.variants import Speed

_STREAMS = 8  # as many as the default has slots
_SHORT_PROMPT = 16
_LONGEST_PROMPT, _LONGEST_ANSWER = 512, 256
_SHIFT = 37  # tokens between the beginnings of two prompts: no divisor of a text's length is likely to be a multiple

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens to read in one prompt, to answer alone, and to answer each of `streams`."""

    prompt: int
    answer: int
    each: int
    streams: int


def first_sizes(slots: int) -> Sizes:
    """Enough to warm an engine up and to see how fast it is about."""
    return Sizes(prompt=64, answer=8, each=6, streams=min(_STREAMS, slots))


def sizes(pace: Speed, seconds: float, first: Sizes, context: int) -> Sizes:
    """Sizes by which each of the three figures takes about so many seconds, as far as the context goes."""
    prompt = int(pace.prefill * seconds) // 64 * 64
    answer, each = int(pace.decode * seconds), int(pace.streams * seconds / first.streams)
    return Sizes(
        prompt=max(first.prompt, min(prompt, _LONGEST_PROMPT, context // 2)),
        answer=max(first.answer, min(answer, _LONGEST_ANSWER, context // 2)),
        each=max(first.each, min(each, _LONGEST_ANSWER, context // 2 // first.streams)),
        streams=first.streams,
    )


class Course:
    """Measures engines on one text; each measurement takes other parts of it. `text` are token ids of the model."""

    def __init__(self, text: Sequence[int], clock: Clock = time.perf_counter) -> None:
        if not text:
            raise ValueError("a course needs a text")
        self._text = text
        self._clock = clock
        self._starts = itertools.count(0, _SHIFT)
        self._names = itertools.count()

    def run(self, engine: Engine, wanted: Sizes) -> Speed:
        """Measure all three. Raises EngineFailed if a request fails."""
        began = self._clock()
        ((read, *_),) = self._arrivals(engine, [self._request(wanted.prompt, 1)])
        (alone,) = self._arrivals(engine, [self._request(_SHORT_PROMPT, wanted.answer + 1)])
        crowd = [self._request(_SHORT_PROMPT, wanted.each + 1) for _ in range(wanted.streams)]
        together = self._arrivals(engine, crowd)
        return Speed(
            decode=(len(alone) - 1) / max(alone[-1] - alone[0], 1e-9),
            prefill=wanted.prompt / max(read - began, 1e-9),
            streams=rate_together(together),
        )

    def _request(self, prompt: int, answer: int) -> Request:
        start = next(self._starts)
        ids = tuple(self._text[(start + i) % len(self._text)] for i in range(prompt))
        greedy = Sampling(temperature=0)
        return Request(f"tune-{next(self._names)}", ids, answer, sampling=greedy, ignore_eos=True)

    def _arrivals(self, engine: Engine, requests: Sequence[Request]) -> list[list[float]]:
        """When each token of each request came; the requests run together until all have ended."""
        times: dict[str, list[float]] = {request.id: [] for request in requests}
        for request in requests:
            engine.add(request)
        running = len(requests)
        while running:
            events = engine.step()
            now = self._clock()
            for name, event in events:
                if isinstance(event, Token):
                    times[name].append(now)
                elif isinstance(event, Failed):
                    raise EngineFailed(f"A measurement failed: {event.error.message}")
                elif isinstance(event, Finished):
                    running -= 1
        if not all(times.values()):
            raise EngineFailed("A measurement gave no tokens.")
        return list(times.values())


def rate_together(times: Sequence[Sequence[float]]) -> float:
    """Tokens per second of all streams from when the last of them began until the first of them ended."""
    begin, end = max(one[0] for one in times), min(one[-1] for one in times)
    return sum(begin < when <= end for one in times for when in one) / max(end - begin, 1e-9)
