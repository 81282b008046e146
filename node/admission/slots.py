"""Who holds a slot, who has given one away, and who would make room for whom; pure."""

from __future__ import annotations

from node.admission.lane import Ticket


class Slots:
    """`limit` of `count` slots may be used; ranks up to `urgent` (-1: none) take `displaces` from those below."""

    def __init__(self, count: int, max_parked: int, urgent: int, displaces: int) -> None:
        self.count = count
        self.running: dict[str, Ticket] = {}  # in the order in which they got their slots
        self.parked: dict[str, Ticket] = {}
        self.urgent = urgent
        self._limit = count
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

    def take(self, ticket: Ticket, now: float) -> None:
        """It runs from now on."""
        self.parked.pop(ticket.id, None)
        self.running[ticket.id] = ticket
        ticket.began = now

    def park(self, ticket: Ticket, now: float) -> None:
        """It gives its slot away, and may have it back later."""
        self.leave(ticket, now)
        self.parked[ticket.id] = ticket
        ticket.state = "parked"

    def leave(self, ticket: Ticket, now: float) -> None:
        """It is neither running nor parked any more."""
        self.parked.pop(ticket.id, None)
        if self.running.pop(ticket.id, None) is not None:
            ticket.ran_s += now - ticket.began
