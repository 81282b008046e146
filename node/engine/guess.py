"""What one answer will say next, guessed from what was said before: in past answers, and in its own prompt and text.

A guess follows a place in an older text for as long as that says the same. When the two part, or the text ends, the
place is looked up anew by the last three tokens. Every token that comes tells whether the guess was right, also when
nothing was made of it; so the chance of the next one is known before anything is paid for it. Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from node.engine.answers import END, TAILS, WIDTH, Answers, beginning_key, place_key
from node.generation import Caller

OWN = 8192  # last tokens of a prompt that are looked at
_LEARNING, _LEARNING_ODDS = 0.2, 0.05

Ids = npt.NDArray[np.int32]
Place = tuple["array[int] | Ids", int]


class Odds:
    """How often the first guess at a new place is right, by the kind of text it is in; over all requests."""

    def __init__(self) -> None:
        self.beginning, self.answer, self.own = 0.7, 0.4, 0.4

    def learn(self, kind: str, hit: bool) -> None:
        """A first guess was right or not."""
        setattr(self, kind, (known := getattr(self, kind)) + _LEARNING_ODDS * (hit - known))


class Guess:
    """Guesses for one request. `ids` are its tokens, which grow in place; `begin` comes before anything else."""

    def __init__(self, ids: Ids, answers: Answers | None, caller: Caller, odds: Odds, ends: Collection[int]) -> None:
        self._ids = ids
        self._answers, self._caller = answers, caller
        self._odds, self._ends = odds, ends
        self._own: dict[int, int] = {}
        self._place: Place | None = None
        self._kind = ""
        self._fresh = True
        self.chance = 0.0  # that the next token is the one guessed; 0 without a guess

    def begin(self, prompt: int, length: int) -> None:
        """The first `length` tokens are there; those after the first `prompt` belong to the answer already."""
        first = max(0, length - OWN)
        ids = self._ids[first:length].astype(np.int64)
        keys = (ids[:-3] << 42) | (ids[1:-2] << 21) | ids[2:-1]
        self._own = dict(zip(keys.tolist(), range(first + WIDTH, length), strict=True))
        if length == prompt and self._answers is not None:
            for tail in TAILS:
                key = beginning_key(self._ids[max(0, prompt - tail) : prompt].tolist())
                if self._go(self._answers.find(self._caller, key), "beginning", length):
                    return
        self._look(length)

    def saw(self, length: int) -> None:
        """One more token came: the last of the first `length`."""
        if self._place is not None:
            source, at = self._place
            hit = at < len(source) and int(source[at]) == int(self._ids[length - 1])
            self.chance += _LEARNING * (hit - self.chance)
            if self._fresh:
                self._odds.learn(self._kind, hit)
            self._fresh = False
            self._place = (source, at + 1) if hit else None
        if self._place is None or not self._next(1, length):
            self._look(length)
        if length > WIDTH:
            self._own[self._key(length - 1)] = length - 1

    def next(self, most: int, length: int) -> Sequence[int]:
        """At most so many tokens that will probably follow the first `length`."""
        return self._next(most, length) if most > 0 else ()

    def _next(self, most: int, length: int) -> list[int]:
        if self._place is None:
            return []
        source, at = self._place
        end = length if source is self._ids else len(source)
        guessed = source[at : min(at + most, end)].tolist()
        for number, token in enumerate(guessed):
            if token == END or token in self._ends:
                return guessed[:number]
        return guessed

    def _look(self, length: int) -> None:
        """Find a place by the last three tokens: in answers, else in the own text."""
        if length < WIDTH:
            self._place, self.chance = None, 0.0
            return
        key = self._key(length)
        known = self._answers.find(self._caller, key) if self._answers is not None else None
        if not self._go(known, "answer", length):
            at = self._own.get(key)
            self._go(None if at is None else (self._ids, at), "own", length)

    def _go(self, place: Place | None, kind: str, length: int) -> bool:
        """Follow this place from now on; False when nothing can be guessed there."""
        self._place, self._kind, self._fresh = place, kind, True
        if not self._next(1, length):
            self._place, self.chance = None, 0.0
            return False
        self.chance = getattr(self._odds, kind)
        return True

    def _key(self, end: int) -> int:
        first, second, third = self._ids[end - 3 : end].tolist()
        return place_key(first, second, third)
