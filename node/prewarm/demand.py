"""How often something is asked for: decayed counts at two scales, and the hours of the day it comes in.

A count with half-life H is worth `sum(2^(-age/H))` over what was seen. Where requests come at a steady rate r, and T
has passed since counting began, it is about `r · H/ln 2 · (1 - 2^(-T/H))`; solved for r, that is the estimate. The
hours of the day are 24 such counts with a half-life of a week, so that a menu is warm before lunch.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass

HOUR_S, DAY_S = 3600.0, 86_400.0
_WEEK_DAYS = 7.0  # half-life of the hours of the day, and the days after which they count as much as the plain rate
_LEAST_SPAN_S = 60.0  # what came within the first minute says nothing about an hour


@dataclass(frozen=True, slots=True)
class HalfLives:
    """In how many seconds a request counts half, at each scale."""

    short_s: float = HOUR_S
    long_s: float = DAY_S


class Demand:
    """A record of requests; times are seconds of the wall clock, and one that goes back is taken for standing still."""

    __slots__ = ("hours", "last", "long", "short")

    def __init__(self) -> None:
        self.short = 0.0
        self.long = 0.0
        self.last = 0.0
        self.hours: array[float] | None = None  # by hour of the day (UTC); None where nobody asked for it

    def note(self, now: float, half_lives: HalfLives) -> None:
        """One more request."""
        age = max(0.0, now - self.last)
        self.short = self.short * _left(age, half_lives.short_s) + 1
        self.long = self.long * _left(age, half_lives.long_s) + 1
        if self.hours is not None:
            left = _left(age, _WEEK_DAYS * DAY_S)
            for hour in range(24):
                self.hours[hour] *= left
            self.hours[_hour(now)] += 1
        self.last = now

    def count_hours(self) -> None:
        """From now on, count by the hour of the day too, with what was last seen as the first."""
        self.hours = array("f", bytes(4 * 24))
        self.hours[_hour(self.last)] = 1

    def copy_to(self, other: Demand) -> None:
        """Let `other` have been asked for whenever this was."""
        other.short, other.long, other.last = self.short, self.long, self.last
        other.hours = None if self.hours is None else array("f", self.hours)

    def per_hour(self, now: float, half_lives: HalfLives, since: float) -> float:
        """Requests to expect in the coming hour, when counting began at `since`."""
        age, span = max(0.0, now - self.last), max(_LEAST_SPAN_S, now - since)
        lately = _rate(self.short * _left(age, half_lives.short_s), half_lives.short_s, span)
        usually = _rate(self.long * _left(age, half_lives.long_s), half_lives.long_s, span)
        if self.hours is not None:
            days = span / DAY_S
            trust = days / (days + _WEEK_DAYS) if days >= 2 else 0.0
            usually += trust * (self._at_this_hour(now, age, days) - usually)
        return (lately + usually) / 2

    def _at_this_hour(self, now: float, age: float, days: float) -> float:
        """Requests of the coming sixty minutes, going by the same minutes of earlier days."""
        assert self.hours is not None
        gone = now % HOUR_S / HOUR_S
        seen = (1 - gone) * self.hours[_hour(now)] + gone * self.hours[_hour(now + HOUR_S)]
        week = _WEEK_DAYS * DAY_S
        return seen * _left(age, week) * (1 - _left(DAY_S, week)) / (1 - _left(days * DAY_S, week))


def _left(age: float, half_life: float) -> float:
    return math.exp2(-age / half_life)


def _rate(count: float, half_life: float, span: float) -> float:
    """Requests per hour."""
    return count * math.log(2) / half_life / (1 - _left(span, half_life)) * HOUR_S


def _hour(now: float) -> int:
    return int(now // HOUR_S) % 24
