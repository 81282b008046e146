"""The state of a connection and the pings that keep it known. Pure: `now` comes in, in seconds.

    connecting ──▶ idle ◀──▶ open        idle: nothing runs on it; open: something does
         │          │ ▲       │ ▲
         │          ▼ │       ▼ │
         │        suspect ◀───────▶      SUSPECT_MISSES periods without a sign of life; one sign brings it back
         │          │
         └────────▶ closing ──▶ closed   CLOSE_MISSES periods, or one side said goodbye

A period is missed when a ping went out at its beginning and nothing at all came in until its end; pings, pongs and
messages all count as signs of life. One tick is at most one miss, so that a node which was busy itself blames nobody.
Pings are numbered, so that their pongs measure the round trip, smoothed as RFC 6298 does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

SUSPECT_MISSES = 3
CLOSE_MISSES = 5


class State(StrEnum):
    """Where a connection is in its life."""

    CONNECTING = "connecting"
    OPEN = "open"
    IDLE = "idle"
    SUSPECT = "suspect"
    CLOSING = "closing"
    CLOSED = "closed"


class Act(StrEnum):
    """What a tick asks for."""

    NOTHING = "nothing"
    PING = "ping"
    CLOSE = "close"


_ALIVE = frozenset({State.OPEN, State.IDLE, State.SUSPECT})
_NEXT: Mapping[State, frozenset[State]] = {
    State.CONNECTING: frozenset({State.IDLE, State.CLOSING, State.CLOSED}),
    **{state: _ALIVE | {State.CLOSING, State.CLOSED} for state in _ALIVE},
    State.CLOSING: frozenset({State.CLOSED}),
    State.CLOSED: frozenset(),
}


class Heartbeat:
    """One connection's state; `tick` when `due`, tell it what is `heard`."""

    def __init__(self, period_s: float) -> None:
        self.state = State.CONNECTING
        self.misses = 0
        self.period_s = period_s
        self._due = float("inf")
        self._asked = False
        self._running = 0
        self._number = 0
        self._sent: tuple[bytes, float] | None = None
        self.trip: tuple[float, float] | None = None

    @property
    def alive(self) -> bool:
        """Open in some way: not before the handshake, not after a goodbye."""
        return self.state in _ALIVE

    def opened(self, now: float) -> None:
        """The handshake is done."""
        if self._go(State.IDLE):
            self._due = now + self.period_s

    def change(self, period_s: float, now: float) -> None:
        """Another period from now on."""
        self.period_s = period_s
        self._asked = False
        if self.alive:
            self._due = now + period_s

    def due(self, now: float) -> float:
        """Seconds until `tick` has something to do."""
        return max(0.0, self._due - now)

    def tick(self, now: float) -> Act:
        """The end of a period: count it, and say what to do."""
        if now < self._due or not self.alive:
            return Act.NOTHING
        self._due = now + self.period_s
        self.misses += self._asked
        self._asked = True
        if self.misses >= CLOSE_MISSES:
            self.closing()
            return Act.CLOSE
        if self.misses >= SUSPECT_MISSES:
            self._go(State.SUSPECT)
        return Act.PING

    def heard(self) -> None:
        """Something came in."""
        self._asked = False
        self.misses = 0
        if self.state is State.SUSPECT:
            self._settle()

    def ping(self, now: float) -> bytes:
        """The payload of a ping that goes out now."""
        self._number += 1
        self._sent = self._number.to_bytes(8), now
        return self._sent[0]

    def ponged(self, payload: bytes, now: float) -> tuple[float, float] | None:
        """A pong came: the round trip and its jitter in seconds, if it answers the last ping."""
        if self._sent is None or payload != self._sent[0]:
            return None
        trip, self._sent = now - self._sent[1], None
        if self.trip is None:
            self.trip = trip, trip / 2
        else:
            mean, jitter = self.trip
            self.trip = mean + (trip - mean) / 8, jitter + (abs(trip - mean) - jitter) / 4
        return self.trip

    def runs(self, count: int) -> None:
        """So many generations run on it now."""
        self._running = count
        if self.state is not State.SUSPECT:
            self._settle()

    def closing(self) -> None:
        """One side says goodbye."""
        self._go(State.CLOSING)

    def closed(self) -> None:
        """It is gone."""
        self._go(State.CLOSED)

    def _settle(self) -> None:
        if self.alive:
            self._go(State.OPEN if self._running else State.IDLE)

    def _go(self, state: State) -> bool:
        """Move if that is a move; what comes late, after a goodbye, changes nothing."""
        if state not in _NEXT[self.state]:
            return False
        self.state = state
        return True
