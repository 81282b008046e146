"""Who holds a slot, who has given one away, and who would make room for whom; pure."""

from __future__ import annotations

from node.admission.lane import Ticket

AGED_SHARE = 8  # one slot in so many, and at least one, may be held by a request that passed a higher level by its age
STALLED_S = 3.0  # a reader that lags for so long loses its slot to those who wait, also where nobody can be parked
MOST_SET_ASIDE = 256
SMALL = 4  # slots; with fewer, one held by age is too large a share to be handed on each time it ends


class Slots:
    """`limit` of `count` slots may be used; ranks up to `urgent` (-1: none) take `displaces` from those below."""

    def __init__(self, count: int, max_parked: int, urgent: int, displaces: int) -> None:
        self.count = count
        self.running: dict[str, Ticket] = {}  # in the order in which they got their slots
        self.parked: dict[str, Ticket] = {}
        self.set_aside: dict[str, Ticket] = {}  # began, and are not in the source any more: their readers stalled
        self.urgent = urgent
        self._limit = count
        self.strict = False  # whether the limit holds for those who run by their age, too
        self._max_parked = max_parked
        self._displaces = displaces

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

        One whose reader lags makes no tokens: it slows nobody, and is slowed by nobody.
        """
        ranks = [ticket.rank for ticket in self.running.values() if not ticket.lags]
        urgent = sum(rank <= self.urgent for rank in ranks)
        if urgent == 0:
            return max(0, self.free)
        return max(0, self._limit - self._displaces * urgent) - (len(ranks) - urgent)

    @property
    def small(self) -> bool:
        """Whether there are so few slots that requests may not follow each other by age."""
        return self._limit < SMALL

    @property
    def open_to_aged(self) -> bool:
        """Whether one more may run by its age; one whose reader lags is no hindrance."""
        aged = sum(ticket.aged and not ticket.lags for ticket in self.running.values())
        return aged < max(1, self._limit // AGED_SHARE)

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
        return max(0, self.free) + min(below, self._max_parked - len(self.parked))

    def victim(self, rank: int) -> Ticket | None:
        """Who makes room for this rank: the lowest, of these the one that began last; None where nobody can.

        One whose reader lags loses nothing, so it comes first, whatever its rank. One that runs by its age stays.
        """
        if len(self.parked) >= self._max_parked:
            return None
        candidates = [t for t in self.running.values() if t.lags or (t.rank > rank and not t.aged)]
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

    def take(self, ticket: Ticket, now: float) -> None:
        """It runs from now on."""
        self.parked.pop(ticket.id, None)
        self.set_aside.pop(ticket.id, None)
        self.running[ticket.id] = ticket
        ticket.began = now

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
