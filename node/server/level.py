"""How much a reader is told: 1 plain text, 2 text with compact metadata, 3 everything. A state machine for weak links.

A reader asks for a level with the header `Outpost-Level`, or not at all: then it gets everything, always. The node goes
below what was asked, a level at a time, while the round trip is over 800 ms or less than 64 MiB of memory are free, and
climbs back when both have been well again, with a margin, for ten seconds. What only level 3 can say, tool calls and
logprobs, was asked for in the request: such an answer stays at 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from node.errors import InvalidRequest

HEADER: Final = "Outpost-Level"
EVERYTHING: Final = 3

WEAK_RTT_S, GOOD_RTT_S = 0.8, 0.5
WEAK_MEMORY, GOOD_MEMORY = 64 << 20, 96 << 20
LOWER_EVERY_S, CLIMB_AFTER_S = 2.0, 10.0


@dataclass(frozen=True, slots=True)
class Conditions:
    """A reader's round trip and the node's free memory; None where unknown, which is taken for well."""

    rtt_s: float | None = None
    memory_free: int | None = None

    @property
    def weakness(self) -> str | None:
        """Why less should be said, or None."""
        if self.rtt_s is not None and self.rtt_s > WEAK_RTT_S:
            return "slow link"
        if self.memory_free is not None and self.memory_free < WEAK_MEMORY:
            return "little memory"
        return None

    @property
    def good(self) -> bool:
        """Well with a margin."""
        quick = self.rtt_s is None or self.rtt_s < GOOD_RTT_S
        return quick and (self.memory_free is None or self.memory_free >= GOOD_MEMORY)


class Levels:
    """One reader's `level`, at most the one it `asked` for."""

    def __init__(self, asked: int) -> None:
        self.asked = asked
        self.level = asked
        self._lowered: float | None = None
        self._good_since: float | None = None

    def observe(self, conditions: Conditions, now: float) -> str | None:
        """Follow the conditions; says why when `level` changed."""
        weakness = conditions.weakness
        if not conditions.good:
            self._good_since = None
        elif self._good_since is None:
            self._good_since = now
        if weakness is not None and self.level > 1:
            if self._lowered is None or now - self._lowered >= LOWER_EVERY_S:
                self._lowered = now
                self.level -= 1
                return weakness
        elif self._good_since is not None and self.level < self.asked and now - self._good_since >= CLIMB_AFTER_S:
            self._good_since = now
            self.level += 1
            return "well again"
        return None


def asked_level(sent: str | None, least: int) -> int | None:
    """The header's level, None without one; `least` is the lowest at which this answer can be told."""
    if sent is None:
        return None
    if sent not in ("1", "2", "3"):
        raise InvalidRequest(f"The header {HEADER} must be 1, 2 or 3.", param=HEADER)
    if int(sent) < least:
        raise InvalidRequest(f"Tool calls and logprobs can only be told at level {least}.", param=HEADER)
    return int(sent)
