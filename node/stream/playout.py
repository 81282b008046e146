"""The playout buffer of a client: text that arrives in bursts is shown in a flow. The pacer's mirror image.

`put` what arrives, `take` what is to be shown; `next_at` says when there will be more, `finish` that no more arrives.
What is taken is everything that was put, in order. A piece of several words comes out word by word; each part carries
the piece's own `seq`, and the piece is complete with the last of them: resume from what was put, not what was taken.

One rule: what waits is shown over the next `horizon_s` seconds, but never slower than reading speed. In a steady flow
that delays text by the horizon; when nothing arrives any more the flow slows down smoothly and lasts for
horizon * (1 + ln(rate / reading rate)) seconds, longer than the horizon itself; a burst is caught up as smoothly.

The horizon follows the longest silence of late (it is forgotten over a minute) and is such that a silence half as long
again would be bridged. Silences of up to three usual gaps count as none: on a clean link the horizon is zero, and text
is shown the moment it comes. The first token is never held back; after `finish` the rest is shown within a second.
Keep one `Playout` for all answers of a connection (`begin` another one): what was learnt about the link is worth most
at the beginning of the next answer.
"""

from __future__ import annotations

import math
import re
from collections import deque

READING_RATE = 5.0  # words a second that a fast reader takes
MOST_S = 4.0  # the longest horizon: more delay than that is worse than a stall

_FORGET_S = 60.0
_MARGIN = 1.5
_USUAL_GAPS = 3.0
_NEWEST = 0.05
_FIRST_GAP_S = 0.05
_TAIL_S = 1.0
_WORD = re.compile(r"\s*\S{1,24}\s*|\s+")


class Playout:
    """One reader's buffer. Not for machines: they want text when it is there."""

    def __init__(self, reading_rate: float = READING_RATE, most_s: float = MOST_S) -> None:
        self._reading_rate = reading_rate
        self._most_s = most_s
        self._usual_s = _FIRST_GAP_S  # the running mean of the gaps, long ones capped
        self._peak_s = 0.0
        self.horizon_s = 0.0
        self.begin()

    def begin(self) -> None:
        """A new answer: empty, with what was learnt about the link."""
        self._waiting: deque[tuple[int, str]] = deque()
        self._put_at: float | None = None
        self._due = -math.inf
        self._last_rate: float | None = None  # once no more arrives

    def put(self, seq: int, text: str, now: float) -> None:
        """A piece arrived; `seq` is the number of its last entry."""
        parts = _WORD.findall(text) or [text]
        self._learn(len(parts), now)
        if not self._waiting:
            self._due = max(self._due, now)
        self._waiting.extend((seq, part) for part in parts)

    def take(self, now: float) -> list[tuple[int, str]]:
        """What is due."""
        taken: list[tuple[int, str]] = []
        while self._waiting and self._due <= now:
            self._due += 1 / self._rate(len(self._waiting))
            taken.append(self._waiting.popleft())
        return taken

    def next_at(self, now: float) -> float | None:
        """When `take` will give something, at the earliest now; None while nothing waits."""
        return max(now, self._due) if self._waiting else None

    def finish(self, now: float) -> None:
        """No more arrives."""
        within = min(self.horizon_s, _TAIL_S)
        self._last_rate = max(self._reading_rate, len(self._waiting) / within if within > 0 else math.inf)
        self._due = min(self._due, now + 1 / self._last_rate)

    def _rate(self, waiting: int) -> float:
        """Parts a second."""
        if self._last_rate is not None:
            return self._last_rate
        return max(self._reading_rate, waiting / self.horizon_s if self.horizon_s > 0 else math.inf)

    def _learn(self, parts: int, now: float) -> None:
        """Take the gap before this piece into account."""
        if self._put_at is not None:
            gap = max(0.0, now - self._put_at)
            usual = _USUAL_GAPS * self._usual_s
            self._usual_s += _NEWEST * (min(gap / parts, usual) - self._usual_s)
            self._peak_s = max(gap, self._peak_s * math.exp(-gap / _FORGET_S))
            lasts = 1 + math.log(max(1.0, 1 / (self._reading_rate * max(self._usual_s, 1e-3))))
            excess = max(0.0, self._peak_s - _USUAL_GAPS * self._usual_s)
            self.horizon_s = min(self._most_s, _MARGIN * excess / lasts)
        self._put_at = now
