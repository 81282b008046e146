"""How much a request is worth right now, against others that wait.

Within a level, score = sla · (seconds waited / the level's maximum wait) + freshness · 2^(−age / half-life)
+ affinity · (share of the prompt that is warm on this node), where age is how long the session had been idle when the
request came: a session that waits for us gets no staler. Each `ageing_s` of waiting outweighs one level.

So every request gains with time at one rate, and the order of two of them never changes: being fresh or warm is worth
a head start of so many seconds, and a level one of `ageing_s` seconds. `place` is the moment at which a request would
have had to come to wait where it does without any of them; the smallest place is the highest score.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from node.generation import LEVELS, Level

_MOST_SESSIONS = 10_000


@dataclass(frozen=True, slots=True)
class SlaClass:
    """What a level is promised, in seconds. None: no promise (it is aged only), no freshness."""

    max_wait_s: float | None
    half_life_s: float | None


CLASSES: Mapping[Level, SlaClass] = {
    "critical": SlaClass(0.120, 90.0),
    "interactive": SlaClass(0.300, 300.0),
    "standard": SlaClass(0.800, 900.0),
    "background": SlaClass(None, None),
}


@dataclass(frozen=True, slots=True)
class Weights:
    """What counts how much; together 1. ValueError where that would let an eager session outrank a level."""

    sla: float = 0.7
    freshness: float = 0.15
    affinity: float = 0.15

    def __post_init__(self) -> None:
        parts = (self.sla, self.freshness, self.affinity)
        if not all(math.isfinite(part) and 0 <= part <= 1 for part in parts):
            raise ValueError(f"The queue's weights must each be between 0 and 1, not {_shown(parts)}.")
        if not math.isclose(sum(parts), 1, abs_tol=1e-6):
            raise ValueError(f"The queue's weights must sum to 1, but {_shown(parts)} sum to {sum(parts):g}.")
        if self.sla <= 0.5:
            raise ValueError(
                f"The queue's SLA weight must be above 0.5, not {self.sla:g}: "
                "else freshness and affinity would outrank waiting, and nothing bounded a wait."
            )


def _shown(parts: tuple[float, ...]) -> str:
    return " + ".join(f"{part:g}" for part in parts)


class Score:
    """The score as places in a line. Freshness needs to know when a session was last seen; at most 10,000 are kept."""

    def __init__(self, weights: Weights, ageing_s: float) -> None:
        slowest = max(promise.max_wait_s or 0.0 for promise in CLASSES.values())
        if not (math.isfinite(ageing_s) and ageing_s > slowest):
            raise ValueError(
                f"Ageing must take longer than the longest promised wait, {slowest:g} s, not {ageing_s:g}."
            )
        self.weights = weights
        self.ageing_s = ageing_s
        self._seen: OrderedDict[Hashable, float] = OrderedDict()

    def saw(self, session: Hashable, now: float) -> None:
        """The session asked, or got an answer."""
        self._seen[session] = now
        self._seen.move_to_end(session)
        if len(self._seen) > _MOST_SESSIONS:
            self._seen.popitem(last=False)

    def freshness(self, level: Level, session: Hashable, now: float) -> float:
        """1 for a session that was active just now, halved with each half-life; 0 where none is known."""
        half_life, seen = CLASSES[level].half_life_s, self._seen.get(session)
        return 0.0 if half_life is None or seen is None else math.exp2(min(0.0, seen - now) / half_life)

    def place(self, level: Level, freshness: float, affinity: float, now: float) -> float:
        """Where one that comes `now` stands in line, in seconds; smaller goes first."""
        return now - self.lead_s(level) - self.head_start_s(level, freshness, affinity)

    def lead_s(self, level: Level) -> float:
        """The seconds by which a level goes before background."""
        return self.ageing_s * (len(LEVELS) - 1 - LEVELS.index(level))

    def head_start_s(self, level: Level, freshness: float, affinity: float) -> float:
        """The wait that being so fresh and so warm outweighs; always less than `ageing_s`."""
        weights = self.weights
        wait_s = CLASSES[level].max_wait_s or self.ageing_s
        return wait_s * (weights.freshness * freshness + weights.affinity * affinity) / weights.sla

    def value(self, level: Level, waited_s: float, freshness: float, affinity: float) -> float:
        """The score itself, for comparison within a level."""
        weights = self.weights
        sla = waited_s / (CLASSES[level].max_wait_s or self.ageing_s)
        return weights.sla * sla + weights.freshness * freshness + weights.affinity * affinity
