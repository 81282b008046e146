"""What the node gives up, and in which order, while it misses its latency objectives; pure.

Stress is the worst ratio of a measured p95 latency to its objective: 1 is just met. A rung is stepped on when stress
has been at its `up` for `up_s`, and left when stress has been at most its `down` for `down_s`, one rung at a time:

rung     up    down  what it adds
-------  ----  ----  ------------------------------------------------------------------------------------------
normal               everything as asked
shorten  1.0   0.7   answers of standard and background are cut short and come without logprobs; no drafts
shed     1.25  0.8   background is refused
offload  1.5   0.9   all but critical go to peers or the cloud where those can take them
cached   2.0   1.0   a question that was just answered gets that answer, marked as such
refuse   4.0   1.2   all but critical are refused

Between the two figures the ladder stays where it is: that is the hysteresis. Rungs that this node cannot do, for want
of peers or of the operator's word for cached answers, are stepped over, and every step says which.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from node.generation import Level

Rung = Literal["normal", "shorten", "shed", "offload", "cached", "refuse"]


@dataclass(frozen=True, slots=True)
class Condition:
    """When a rung is stepped on and left: stress, and seconds that it must last."""

    up: float
    up_s: float
    down: float
    down_s: float


TABLE: Mapping[Rung, Condition] = {
    "normal": Condition(0.0, 0.0, -math.inf, 0.0),  # nothing is below it
    "shorten": Condition(1.0, 3.0, 0.7, 10.0),
    "shed": Condition(1.25, 3.0, 0.8, 10.0),
    "offload": Condition(1.5, 3.0, 0.9, 10.0),
    "cached": Condition(2.0, 3.0, 1.0, 10.0),
    "refuse": Condition(4.0, 3.0, 1.2, 10.0),
}
RUNGS: tuple[Rung, ...] = tuple(TABLE)
OPTIONAL: frozenset[Rung] = frozenset({"offload", "cached"})

_MOST_TOKENS: Mapping[Level, int] = {"standard": 256, "background": 128}


@dataclass(frozen=True, slots=True)
class Step:
    """The ladder moved. `skipped` rungs lie between, and this node cannot do them."""

    old: Rung
    new: Rung
    stress: float
    skipped: tuple[Rung, ...] = ()


@dataclass(frozen=True, slots=True)
class Effect:
    """What a request of some level gets on some rung; `max_tokens` None is as asked."""

    max_tokens: int | None = None
    logprobs: bool = True
    drafts: bool = True
    refused: bool = False
    offload: bool = False
    cached: bool = False


def effect(rung: Rung, level: Level) -> Effect:
    """Each rung does what the ones below it do, and more."""
    height = RUNGS.index(rung)

    def on(step: Rung) -> bool:
        return height >= RUNGS.index(step)

    low = level in _MOST_TOKENS
    return Effect(
        max_tokens=_MOST_TOKENS.get(level) if on("shorten") else None,
        logprobs=not (on("shorten") and low),
        drafts=not on("shorten"),
        refused=(on("shed") and level == "background") or (on("refuse") and level != "critical"),
        offload=on("offload") and level != "critical",
        cached=on("cached"),
    )


def stress(measured: Collection[tuple[float | None, float]]) -> float:
    """The worst of (measured latency, objective) in seconds; 0 where nothing was measured, as on an idle node."""
    ratios = [latency / objective for latency, objective in measured if latency is not None and objective > 0]
    return max(ratios, default=0.0)


class Ladder:
    """Where the node stands. Call `update` about once a second."""

    def __init__(self) -> None:
        self.rung: Rung = "normal"
        self._high_since: float | None = None  # since when stress asks for the next rung
        self._low_since: float | None = None  # since when it asks for leaving this one

    def update(self, stress: float, able: Collection[Rung], now: float) -> Step | None:
        """Move at most one rung; `able` are those of OPTIONAL that this node can do now."""
        if math.isnan(stress):
            raise ValueError("Stress is a number.")
        upper, skipped_up = self._next(1, able)
        lower, skipped_down = self._next(-1, able)
        if self.rung in OPTIONAL and self.rung not in able:
            return self._move(lower, stress, skipped_down)
        here = TABLE[self.rung]
        above = TABLE[upper] if upper != self.rung else None
        high = above is not None and stress >= above.up
        low = stress <= here.down
        self._high_since = None if not high else now if self._high_since is None else self._high_since
        self._low_since = None if not low else now if self._low_since is None else self._low_since
        if above is not None and self._high_since is not None and now - self._high_since >= above.up_s:
            return self._move(upper, stress, skipped_up)
        if self._low_since is not None and now - self._low_since >= here.down_s:
            return self._move(lower, stress, skipped_down)
        return None

    def retry_after(self, now: float) -> int:
        """Whole seconds until this rung is left at the earliest: what a refused client is told."""
        down_s = TABLE[self.rung].down_s
        waited = 0.0 if self._low_since is None else now - self._low_since
        return max(1, math.ceil(down_s - waited))

    def _next(self, way: int, able: Collection[Rung]) -> tuple[Rung, tuple[Rung, ...]]:
        """The next rung that this node can do, and what is stepped over; this one at the ends."""
        skipped: list[Rung] = []
        index = RUNGS.index(self.rung) + way
        while 0 <= index < len(RUNGS):
            rung = RUNGS[index]
            if rung not in OPTIONAL or rung in able:
                return rung, tuple(skipped)
            skipped.append(rung)
            index += way
        return self.rung, ()

    def _move(self, new: Rung, stress: float, skipped: tuple[Rung, ...]) -> Step:
        old, self.rung = self.rung, new
        self._high_since = self._low_since = None
        return Step(old, new, stress, skipped)
