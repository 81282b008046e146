"""When the packets of one reply go: news at once, then copies, then a tail, then by timeout.

- Copies: how many depends on the loss p, so that all of a chunk's packets are lost in fewer than 4 in 1,000 cases, as
  far as losses are independent: e = clamp(ceil(ln 0.004 / ln p) - 1, 0, 3), none below 0.3 %. They follow 2 ms apart:
  a reader waits so long after a loss. Whether two so close are lost together is measured: where losses come in bursts,
  copies are spread over the time to the next token, and there are two or three.
- Tail: when the reply ends, or pauses for twice its usual gap, no later packet will repair the last one. So repeats
  follow after 12, 20, 35, 59, 100 and 170 ms, while unacknowledged. On a path that is not known yet the end alone
  has repeats, after 0.15 and 0.45 s, on one that is full a single one, after 0.2 s.
- Then one packet a timeout (PTO), each 1.5 times as long as the one before, at most 2 s.

News replace what was planned: their packet carries what was not acknowledged, too.
"""

from __future__ import annotations

import math
from enum import IntEnum

COPY_S = 0.002
TAIL_S = (0.012, 0.020, 0.035, 0.059, 0.100, 0.170)
FIRST_TAIL_S = (0.15, 0.45)
SHORT_TAIL_S = (0.2,)
MAX_PTO_S = 2.0
_PTO_FACTOR = 1.5
_MOST_TIMEOUTS = 32  # the wait is the longest by then
_RESIDUAL = 0.004
BURSTY = 1.6  # mean losses in a row from which copies keep a distance
_LONGEST_GAP = 1.0
_FIRST_GAP = 0.05
_COPIES_A_SECOND, _COPIES_AT_ONCE = 120.0, 8.0


class Kind(IntEnum):
    NEWS = 0
    COPY = 1
    REPEAT = 2


def copies(loss: float) -> int:
    """How many copies follow a packet."""
    if loss < 0.003:
        return 0
    return min(3, max(0, math.ceil(math.log(_RESIDUAL) / math.log(min(loss, 0.9))) - 1))


class Schedule:
    """One reply's plan: (when, what) in order."""

    def __init__(self) -> None:
        self._plan: list[tuple[float, Kind]] = []
        self._gap = _FIRST_GAP
        self._last_news = -math.inf
        self.last_sent = -math.inf
        self._timeouts = 0
        self._bucket, self._filled = _COPIES_AT_ONCE, 0.0

    def news(self, now: float) -> None:
        """A chunk, or the end, waits to be sent."""
        if now > self._last_news > -math.inf:
            self._gap += 0.2 * (min(now - self._last_news, _LONGEST_GAP) - self._gap)
        self._last_news = now
        if not self._plan or self._plan[0][1] is not Kind.NEWS:
            self._plan = [(now, Kind.NEWS)]

    def repeat(self, now: float) -> None:
        """Something is known to be lost."""
        if not self._plan or self._plan[0][0] > now:
            self._plan.insert(0, (now, Kind.REPEAT))

    def when(self, pto: float) -> float:
        """When the next packet goes."""
        return self._plan[0][0] if self._plan else self.due(pto)[0]

    def due(self, pto: float) -> tuple[float, Kind]:
        """When the next packet goes, and which; only asked while something waits."""
        if self._plan:
            return self._plan[0]
        wait = min(MAX_PTO_S, pto * _PTO_FACTOR**self._timeouts)
        return self.last_sent + wait, Kind.REPEAT

    def sent(self, kind: Kind, now: float, more: bool) -> None:
        """The packet that was due went out; with `more`, there are news that found no room in it."""
        if kind is Kind.NEWS and more:
            return
        if self._plan:
            self._plan.pop(0)
        else:
            self._timeouts = min(self._timeouts + 1, _MOST_TIMEOUTS)
        self.last_sent = now

    def plan(
        self,
        now: float,
        loss: float,
        burst: float,
        ended: bool,
        pressed: bool,
        tail: tuple[float, ...] = TAIL_S,
    ) -> None:
        """News went out: plan what follows. A `pressed` path has no room for copies; other tails follow ends only."""
        count = 0 if pressed else copies(loss)
        if burst < BURSTY:
            self._plan = [(now + COPY_S * (i + 1), Kind.COPY) for i in range(count)]
        else:
            count = max(2, count) if count else 0
            self._plan = [(now + self._gap * (i + 1) / (count + 1), Kind.COPY) for i in range(count)]
        if not ended and tail is not TAIL_S:
            return
        start = now if ended else self._last_news + 2 * self._gap
        self._plan += [(start + offset, Kind.REPEAT) for offset in tail]
        self._plan.sort()

    def may_copy(self, now: float) -> bool:
        """Whether one more copy is within 120 a second."""
        self._bucket = min(_COPIES_AT_ONCE, self._bucket + (now - self._filled) * _COPIES_A_SECOND)
        self._filled = now
        if self._bucket < 1:
            return False
        self._bucket -= 1
        return True

    def skip(self) -> None:
        """What was due is not needed."""
        if self._plan:
            self._plan.pop(0)

    def progress(self) -> None:
        """The other end answers: timeouts start afresh."""
        self._timeouts = 0

    def settled(self) -> None:
        """Everything was acknowledged."""
        self._plan.clear()
        self._timeouts = 0
