"""How many guessed tokens pay: what a step with them costs, against what they bring if they are right. Pure.

A guessed token is worth the chance that it and all before it are right. Guesses are put in while tokens per second,
expected, grow, and the step stays as short as steps are to be: so many, or none at all. What a step costs is a line
over its number of tokens, learned from every step; while nothing but one number of tokens was seen lately, its slope is
an assumption, so that a wager that did not pay is tried again once in a while, and one that seems to pay is left out
once in a while.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LONGEST = 15  # guesses of one sequence in one step
MOST_TOKENS = 32  # of a step with guesses: from 64 on, kernels for attention are others and floats round otherwise
MARGIN = 1.05  # so much faster it must seem
_FORGET = 0.98
_ASSUMED = 1.5  # a step without guesses costs as much as so many more tokens would
_TRUST = 0.02  # variance of the number of tokens from which on the line is believed more than the assumption


class StepLine:
    """Seconds of a step of n tokens, as base + each · n: least squares over what was seen lately."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """A step took so long; one that took very long for another reason counts as twice what was expected."""
        if self._weight > 1:
            seconds = min(seconds, 2 * self.seconds(tokens))
        for name, value in (("_weight", 1.0), ("_x", tokens), ("_y", seconds)):
            setattr(self, name, _FORGET * getattr(self, name) + value)
        self._xx = _FORGET * self._xx + tokens * tokens
        self._xy = _FORGET * self._xy + tokens * seconds

    def seconds(self, tokens: int) -> float:
        """What a step of so many tokens will take; before anything was seen, in any unit."""
        if not self._weight:
            return _ASSUMED + tokens
        x, y, variance = self._x / self._weight, self._y / self._weight, self._variance
        covariance = self._xy / self._weight - x * y
        each = (max(0.0, covariance) + _TRUST * y / (x + _ASSUMED)) / (variance + _TRUST)
        return y + min(each, y / x) * (tokens - x)

    @property
    def known(self) -> bool:
        """Whether any step was seen: else there is no unit."""
        return self._weight > 0

    def unsure(self, tokens: int) -> bool:
        """Whether only steps of more tokens were seen lately, and all of the same size."""
        return self._variance < _TRUST / 2 and self._x > (tokens + 0.5) * self._weight > 0

    @property
    def _variance(self) -> float:
        return self._xx / self._weight - (self._x / self._weight) ** 2 if self._weight else 0.0


def how_many(chances: Sequence[float], line: StepLine, most: int, step_s: float = math.inf) -> list[int]:
    """For each streaming sequence, whose next guess is right with this chance, how many guesses to check in the step.

    `most` bounds their sum. A step that takes longer than `step_s` for one stream's guesses holds up the others; where
    streaming alone takes more than half of that, it may take twice as long as that, as with prompts.
    """
    streams = len(chances)
    if line.unsure(streams):
        return [0] * streams
    gains = sorted(
        ((chance**number, stream) for stream, chance in enumerate(chances) for number in range(1, LONGEST + 1)),
        key=lambda gain: -gain[0],
    )
    expected, best, count = float(streams), MARGIN * streams / line.seconds(streams), 0
    longest_s = max(step_s, 2 * line.seconds(streams)) if line.known and streams > 1 else math.inf
    for number, (gain, _) in enumerate(gains[: max(0, most)], 1):
        if line.seconds(streams + number) > longest_s:
            break
        expected += gain
        if (rate := expected / line.seconds(streams + number)) > best:
            best, count = rate, number
    counts = [0] * streams
    for _, stream in gains[:count]:
        counts[stream] += 1
    return counts
