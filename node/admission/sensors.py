"""What requests feel: how long they wait for a slot and for their first token, and the gaps between tokens; pure.

Figures by level are of the last half to whole minute, for people; `pace` and `wait_s` are of the last seconds, for what
steers. Time that a request spends without its slot, because it made room or its reader lags, is no gap between tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from node.admission.latency import Recent
from node.generation import LEVELS, Level

SHOWN_S, WAITS_S = 30.0, 5.0
PACE_S = 1.0  # no longer than what steers takes between two looks, or one bad second would count twice

Fate = Literal["admitted", "refused", "expired", "parked", "finished", "cancelled", "failed"]


def _shown() -> Recent:
    return Recent(SHOWN_S)


@dataclass(slots=True, eq=False)
class Felt:
    """One level: how long its requests waited, for what, and what became of them since the node began."""

    wait: Recent = field(default_factory=_shown)
    ttft: Recent = field(default_factory=_shown)
    gap: Recent = field(default_factory=_shown)
    wait_lately: Recent = field(default_factory=lambda: Recent(WAITS_S))
    gap_lately: Recent = field(default_factory=lambda: Recent(PACE_S))
    fates: Counter[Fate] = field(default_factory=Counter)


@dataclass(slots=True)
class _Flight:
    """One request on its way. `last` is when it made its last token, None where it had no slot since then."""

    felt: Felt
    offered: float
    length: int
    holds_slot: bool = False
    spoke: bool = False
    last: float | None = None


class Sensors:
    """Follows requests from their offer to their end. `pace` are the latest gaps of all of them."""

    def __init__(self) -> None:
        self.levels: dict[Level, Felt] = {level: Felt() for level in LEVELS}
        self.pace = Recent(PACE_S)
        self._flights: dict[str, _Flight] = {}
        self._waiting: dict[str, _Flight] = {}  # those without a first slot, the oldest first

    def wait_s(self, levels: Collection[Level], now: float) -> float | None:
        """How long these levels wait for a slot: the p95 of who got one lately, or the longest of who waits still."""
        felts = [self.levels[level] for level in levels]
        waits = [wait for felt in felts if (wait := felt.wait_lately.percentile(0.95, now)) is not None]
        oldest = next((flight for flight in self._waiting.values() if flight.felt in felts), None)
        return max(waits if oldest is None else [*waits, now - oldest.offered], default=None)

    def gap_s(self, levels: Collection[Level], now: float) -> float | None:
        """The p95 of the latest gaps of these levels, of the one that has it worst."""
        gaps = (self.levels[level].gap_lately.percentile(0.95, now) for level in levels)
        return max((gap for gap in gaps if gap is not None), default=None)

    @property
    def tokens_running(self) -> int:
        """Prompts and answers of the requests that hold a slot: the part of the KV cache that cannot give way."""
        return sum(flight.length for flight in self._flights.values() if flight.holds_slot)

    def refused(self, level: Level) -> None:
        """A request was not let in."""
        self.levels[level].fates["refused"] += 1

    def admitted(self, id: str, level: Level, length: int, now: float) -> None:
        """A request waits, or runs; it is `length` tokens long."""
        self._flights[id] = self._waiting[id] = _Flight(self.levels[level], now, length)
        self.levels[level].fates["admitted"] += 1

    def started(self, id: str, now: float) -> None:
        """It got its first slot."""
        flight = self._waiting.pop(id)
        flight.holds_slot = True
        flight.felt.wait.add(now - flight.offered, now)
        flight.felt.wait_lately.add(now - flight.offered, now)

    def parked(self, id: str) -> None:
        """It made room for another, or for its reader."""
        if flight := self._flights.get(id):
            flight.felt.fates["parked"] += 1
            flight.holds_slot, flight.last = False, None

    def resumed(self, id: str) -> None:
        """It has a slot again."""
        if flight := self._flights.get(id):
            flight.holds_slot = True

    def token(self, id: str, now: float) -> None:
        """It made a token."""
        flight = self._flights[id]
        flight.length += 1
        if not flight.spoke:
            flight.spoke = True
            flight.felt.ttft.add(now - flight.offered, now)
        elif flight.last is not None:
            flight.felt.gap.add(now - flight.last, now)
            flight.felt.gap_lately.add(now - flight.last, now)
            self.pace.add(now - flight.last, now)
        flight.last = now if flight.holds_slot else None  # the step that was under way when it lost its slot

    def ended(self, id: str, fate: Fate) -> None:
        """It is over."""
        self._waiting.pop(id, None)
        if flight := self._flights.pop(id, None):
            flight.felt.fates[fate] += 1
