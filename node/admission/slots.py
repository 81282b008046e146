"""Who holds a slot, who has given one away, and who would make room for whom; pure."""

from __future__ import annotations

import math

from node.admission.lane import Ticket

AGED_SHARE = 8  # one slot in so many, and at least one, may be held by a request that passed a higher level by its age
STALLED_S = 3.0  # a reader that lags for so long loses its slot to those who wait, also where nobody can be parked
MOST_SET_ASIDE = 256
SMALL = 4  # slots; with fewer, one held by age is too large a share to be handed on each time it ends


class Slots:
    """`limit` of `count` slots may be used; ranks up to `urgent` (-1: none) take `displaces` from those below.

    `pause_s` is the time between two starts by age, on as many slots as one of them may hold.
    """

    def __init__(self, count: int, max_parked: int, urgent: int, displaces: int, pause_s: float) -> None:
        self.count = count
        self.running: dict[str, Ticket] = {}  # in the order in which they got their slots
        self.parked: dict[str, Ticket] = {}
        self.set_aside: dict[str, Ticket] = {}  # began, and are not in the source any more
        self.urgent = urgent
        self._limit = count
        self.strict = False  # whether the limit holds for those who run by their age, too
        self._max_parked = max_parked
        self._displaces = displaces
        self._pause_s = pause_s
        self._aged_at = -math.inf  # when one last began to run by its age

    @property
    def limit(self) -> int:
        """How many may run at a time, 1 to `count`. Those over a new limit run to their end."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = min(max(1, limit), self.count)

    @property
    def free(self) -> int:
        """How many more may run; negative after the limit was lowered."""
        return self._limit - len(self.running)

    @property
    def free_for_lower(self) -> int:
        """How many more that are not urgent; negative where they hold slots that urgent ones displace.

        One whose reader lags makes no tokens: it slows nobody, and is slowed by nobody. One that runs by its age
        displaces nobody, or one that has begun in the same instant could be its victim.
        """
        active = [ticket for ticket in self.running.values() if not ticket.lags]
        urgent = sum(ticket.rank <= self.urgent for ticket in active)
        if urgent == 0:
            return max(0, self.free)
        lower = sum(ticket.rank > self.urgent and not ticket.aged for ticket in active)
        return max(0, self._limit - self._displaces * urgent) - lower

    @property
    def small(self) -> bool:
        """Whether there are so few slots that requests may not follow each other by age."""
        return self._limit < SMALL

    def open_to_aged(self, now: float) -> bool:
        """Whether one more may run by its age; one whose reader lags is no hindrance."""
        aged = sum(ticket.aged and not ticket.lags for ticket in self.running.values())
        most = max(1, self._limit // AGED_SHARE)
        return aged < most and (self.small or now >= self._aged_at + self._pause_s / most)

    @property
    def free_for_aged(self) -> int:
        """How many more may run by their age: a limit that is there for the pace of others does not starve them."""
        return (self._limit if self.strict else self.count) - len(self.running)

    @property
    def highest(self) -> int | None:
        """The most urgent rank that makes tokens now."""
        return min((ticket.rank for ticket in self.running.values() if not ticket.lags), default=None)

    def open_to(self, rank: int) -> int:
        """How many of this rank could begin now, those counted who would make room."""
        if rank > self.urgent:
            return max(0, min(self.free, self.free_for_lower))
        below = sum(ticket.rank > rank and not ticket.aged for ticket in self.running.values())
        return max(0, self.free) + (below if self._can_displace else 0)

    @property
    def room_to_park(self) -> bool:
        """Whether one more may be held by the source, without a slot."""
        return len(self.parked) < self._max_parked

    @property
    def _can_displace(self) -> bool:
        """Whether there is room for one that makes room; a source that can hold nobody is left alone."""
        return self._max_parked > 0 and (self.room_to_park or len(self.set_aside) < MOST_SET_ASIDE)

    def victim(self, rank: int) -> Ticket | None:
        """Who makes room for this rank: the lowest, of these the one that began last; None where nobody can.

        One whose reader lags loses nothing when it is parked, so it comes first, whatever its rank. One that runs by
        its age stays.
        """
        if not self._can_displace:
            return None
        lags = self.room_to_park
        candidates = [t for t in self.running.values() if (t.lags and lags) or (t.rank > rank and not t.aged)]
        return max(reversed(candidates), key=lambda ticket: (ticket.lags, ticket.rank), default=None)

    def laggards(self) -> list[Ticket]:
        """Those who should give their slot up because their reader lags; half of the room is kept for preemption."""
        room = (self._max_parked + 1) // 2 - len(self.parked)
        return [ticket for ticket in self.running.values() if ticket.lags][: max(0, room)]

    def stalled(self, now: float) -> Ticket | None:
        """Who has held a slot longest for a reader that lags, if that is too long."""
        if len(self.set_aside) >= MOST_SET_ASIDE:
            return None
        lagging = [ticket for ticket in self.running.values() if ticket.lags and now - ticket.lags_at >= STALLED_S]
        return min(lagging, key=lambda ticket: ticket.lags_at, default=None)

    def take(self, ticket: Ticket, now: float, aged: bool = False) -> None:
        """It runs from now on, `aged` where it goes before a higher level by its age."""
        self.parked.pop(ticket.id, None)
        self.set_aside.pop(ticket.id, None)
        self.running[ticket.id] = ticket
        ticket.began, ticket.aged = now, aged
        if aged:
            self._aged_at = now

    def park(self, ticket: Ticket, now: float) -> None:
        """It gives its slot away, and may have it back later."""
        self.leave(ticket, now)
        self.parked[ticket.id] = ticket
        ticket.state = "parked"

    def put_aside(self, ticket: Ticket, now: float) -> None:
        """It gives its slot away and takes no parking room; it may have a slot again later."""
        self.leave(ticket, now)
        self.set_aside[ticket.id] = ticket
        ticket.state = "parked"

    def leave(self, ticket: Ticket, now: float) -> None:
        """It is neither running nor parked nor set aside any more."""
        self.parked.pop(ticket.id, None)
        self.set_aside.pop(ticket.id, None)
        if self.running.pop(ticket.id, None) is not None:
            ticket.ran_s += now - ticket.began
