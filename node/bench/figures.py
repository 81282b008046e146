"""Arithmetic on what a client saw: rates, gaps and percentiles. Times are seconds on one clock."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from node.errors import OperatorError


@dataclass(slots=True)
class Arrivals:
    """When the pieces of one stream came, in order, and how many tokens they were in all (0: one a piece)."""

    times: list[float] = field(default_factory=list)
    tokens: int = 0

    @property
    def tokens_per_piece(self) -> float:
        """Half characters arrive later and a lagging reader gets two tokens in one piece, so it is not always 1."""
        return self.tokens / len(self.times) if self.tokens and self.times else 1.0


def window(streams: Sequence[Arrivals]) -> tuple[float, float]:
    """From the latest first piece to the earliest last one: while all streamed. OperatorError if they never did."""
    begin = max(stream.times[0] for stream in streams)
    end = min(stream.times[-1] for stream in streams)
    if end <= begin:
        raise OperatorError(
            "The streams never ran together: the first had ended when the last began.",
            hint="Other work on the machine makes this likelier; try again when it is idle.",
        )
    return begin, end


def window_rate(streams: Sequence[Arrivals]) -> float:
    """Tokens per second of all streams together while all of them streamed."""
    begin, end = window(streams)
    tokens = sum(
        (bisect_right(stream.times, end) - bisect_right(stream.times, begin)) * stream.tokens_per_piece
        for stream in streams
    )
    return tokens / (end - begin)


def gaps(times: Sequence[float], begin: float = -math.inf, end: float = math.inf) -> list[float]:
    """The waits between neighbours that touch the time from `begin` to `end`."""
    return [after - before for before, after in itertools.pairwise(times) if after > begin and before < end]


def percentile(values: Iterable[float], share: float) -> float:
    """The nearest-rank percentile: the least value that `share` (0 to 1) of all values do not exceed."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("there is no percentile of nothing")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
