"""What is thought of those who send chunks: three wrong ones, and a source is asked no more. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

STRIKES = 3
_MISSES = 8  # without ever a chunk: it has nothing of this file, for now
_REST_S = 1.0
_SILENCE_S = 5.0


@dataclass(slots=True)
class _One:
    strikes: int = 0
    misses: int = 0
    rests_until: float = 0.0
    helps: bool = False


@dataclass(slots=True)
class Standing:
    """By source's name, for the time of one fetch."""

    _known: dict[str, _One] = field(default_factory=dict)

    def may_ask(self, name: str, now: float) -> bool:
        """Whether it is worth asking."""
        one = self._known.get(name)
        return one is None or (one.strikes < STRIKES and now >= one.rests_until)

    def dropped(self, name: str) -> bool:
        """Whether it sent too many wrong chunks."""
        return name in self._known and self._known[name].strikes >= STRIKES

    def good(self, name: str) -> None:
        """It sent a right chunk, or will soon: it has something of this file."""
        self._one(name).helps = True

    def bad(self, name: str) -> bool:
        """It sent a wrong chunk; whether that was one too many."""
        one = self._one(name)
        one.strikes += 1
        return one.strikes == STRIKES

    def missed(self, name: str, now: float) -> None:
        """It has not got the chunk; one that never had one is left alone for a moment."""
        one = self._one(name)
        one.misses += 1
        if one.misses >= _MISSES and not one.helps:
            one.misses, one.rests_until = 0, now + _REST_S

    def silent(self, name: str, now: float) -> None:
        """It cannot be reached."""
        self._one(name).rests_until = now + _SILENCE_S

    def stirred(self, name: str) -> None:
        """It has asked for something of this file, so it is worth asking again."""
        if name in self._known:
            self._known[name].rests_until = 0.0

    def _one(self, name: str) -> _One:
        return self._known.setdefault(name, _One())
