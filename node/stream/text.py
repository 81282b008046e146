"""Token bytes to text that may be shown: whole characters only, and never the beginning of a stop string.

The result does not depend on where the token borders fall: of several stop strings the one that is complete first
ends the text, and of those complete at the same character the longest.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextAssembler:
    """Turns one generation's pieces into text; `stopped` is set once a stop string was seen."""

    def __init__(self, stop: Sequence[str] = ()) -> None:
        if any(not text for text in stop):
            raise ValueError("a stop string must not be empty")
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.stopped = False

    def push(self, piece: bytes) -> str:
        """The text that is safe to show after `piece`; empty while characters or stop strings are undecided."""
        if self.stopped:
            return ""
        text = self._decoder.decode(piece)
        if not self._stop:
            return text
        text = self._held + text
        if (start := _first_stop(text, self._stop)) is not None:
            self.stopped = True
            self._held = ""
            return text[:start]
        keep = _undecided(text, self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back and turned out to be plain text; half a character at the very end is dropped."""
        held, self._held = self._held, ""
        return held


def _first_stop(text: str, stop: Sequence[str]) -> int | None:
    """Where the stop string begins that is complete first, or None."""
    found = [(start + len(mark), start) for mark in stop if (start := text.find(mark)) >= 0]
    return min(found)[1] if found else None


def _undecided(text: str, stop: Sequence[str]) -> int:
    """Length of the longest end of `text` that could still become a stop string."""
    longest = min(len(text), max(map(len, stop)) - 1)
    return next((n for n in range(longest, 0, -1) if any(mark.startswith(text[-n:]) for mark in stop)), 0)
