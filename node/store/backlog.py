"""What waits for the network, and in which order it goes; pure, `now` and randomness are passed in.

Four priorities, the most urgent first. Within a priority what was put first goes first.

priority   what                                              when there is no room for more
---------  ------------------------------------------------  -----------------------------------------------------
alarm      somebody has to look                              a newcomer is refused; what was accepted is never dropped
status     answers to be delivered, reports of a fleet       the same
telemetry  a node's figures, now and then                    the oldest of the lowest priority is dropped, and counted
log        everything else                                   the same

A newcomer of a lossy priority never displaces what is more urgent than itself: it displaces its own kind or is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, Literal, get_args

Priority = Literal["alarm", "status", "telemetry", "log"]
PRIORITIES: Final[tuple[Priority, ...]] = get_args(Priority)  # the most urgent first
LOSSY: Final = frozenset({"telemetry", "log"})

FIRST_S, MOST_S = 1.0, 300.0
STEP_S = 60.0  # a clock that moved so much more or less than time did was set


def displaced(excess: int, candidates: Iterable[tuple[int, int]]) -> list[int] | None:
    """Which rows to drop so that `excess` bytes become free; None if all of them do not suffice.

    `candidates` are (number, bytes) of what may be dropped, in the order in which it is to go.
    """
    doomed: list[int] = []
    for number, size in candidates:
        if excess <= 0:
            break
        doomed.append(number)
        excess -= size
    return doomed if excess <= 0 else None


def pause_s(attempts: int, chance: float, first_s: float = FIRST_S, most_s: float = MOST_S) -> float:
    """Seconds to stay away after so many failures: doubling, and up to half of it less, so that no two nodes agree.

    `chance` is drawn evenly from 0 to 1.
    """
    longest = min(most_s, first_s * 2.0 ** min(max(attempts, 1) - 1, 30))
    return longest * (0.5 + chance / 2)


class Reconnect:
    """When to try a destination again. `failures` counts those since the last success."""

    def __init__(self, first_s: float = FIRST_S, most_s: float = MOST_S) -> None:
        self._first_s, self._most_s = first_s, most_s
        self._until = -math.inf
        self.failures = 0

    def wait_s(self, now: float) -> float:
        """Seconds until it may be tried; 0 is now."""
        return max(0.0, self._until - now)

    def failed(self, now: float, chance: float, least_s: float = 0.0) -> float:
        """An attempt failed; gives the pause. `least_s` is what the destination asked for, such as Retry-After."""
        self.failures += 1
        pause = max(pause_s(self.failures, chance, self._first_s, self._most_s), min(least_s, self._most_s))
        self._until = now + pause
        return pause

    def succeeded(self) -> None:
        """It answered."""
        self.failures, self._until = 0, -math.inf


class Bucket:
    """A rate with room for a burst: `rate` a second, at most `burst` at once; a rate of 0 is no limit."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._level, self._at = burst, -math.inf

    def take(self, amount: float, now: float) -> float:
        """Use `amount`; gives the seconds until so much has come together. More than the burst passes, later."""
        if self._rate <= 0:
            return 0.0
        self._level = (
            min(self._burst, self._level + (now - self._at) * self._rate) if self._at > -math.inf else self._burst
        )
        self._at = now
        self._level -= amount
        return max(0.0, -self._level / self._rate)


class Steps:
    """Tells when the wall clock was set, by a clock that only ever goes on: rows must not expire because of that."""

    def __init__(self, wall: float, steady: float) -> None:
        self._offset = wall - steady

    def step(self, wall: float, steady: float) -> float:
        """Seconds by which the wall clock was set since the last call; 0 where it was not."""
        moved = wall - steady - self._offset
        if abs(moved) < STEP_S:
            return 0.0
        self._offset += moved
        return moved


def uuid7(milliseconds: int, random: bytes) -> str:
    """An id of RFC 9562, version 7: by time, then 74 random bits; `random` is ten bytes."""
    tail = int.from_bytes(random[:10], "big")
    number = (
        (milliseconds & (1 << 48) - 1) << 80
        | 0x7 << 76
        | (tail >> 62 & 0xFFF) << 64
        | 0b10 << 62
        | tail & (1 << 62) - 1
    )
    text = f"{number:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
