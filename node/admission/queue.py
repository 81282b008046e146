"""Who runs now, who waits, who makes room; pure, `now` in seconds is passed in, decisions come out.

- Of those who wait, the one with the best place (see `score`) runs when a slot is free. Who lost its slot has it back
  before newcomers of its level.
- Levels are strict for `ageing_s` seconds of waiting; then a request goes before newcomers of the next level, and so
  on. At most every 8th start goes to one that passes a higher level by its age, so that a backlog of aged ones never
  fills the slots; and such a one keeps its slot until it ends. Thus every wait ends: see `rules.wait_bound_s`.
- When one waits whose level may preempt, and no slot is free, the lowest level that runs makes room; of these the one
  that began last, since it has the least to keep or to read again. Readers that lag make room for anybody.
- Who waited longer than its time to live is expired and never runs. Who may wait at all is the `door`'s business.

The policy "fifo" is the same with one line for all levels, arrival as place, and nobody refused but for want of room.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from node.admission.door import SHARES, Door, ServiceTime
from node.admission.lane import Heap, Lane, Ticket
from node.admission.rules import AGED_EVERY, Rules
from node.admission.score import LEVELS, Score
from node.errors import InvalidRequest
from node.generation import Level, Request

TICKET_BYTES, TOKEN_BYTES = 2048, 36  # what one that waits costs: the request, its places here, its prompt's numbers


@dataclass(frozen=True, slots=True)
class Decision:
    """Ids, to be acted on in this order. `park` and `resume` are `hold` in a source's terms."""

    expire: tuple[str, ...] = ()
    park: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    start: tuple[str, ...] = ()


class AdmissionQueue:
    """Ids are any text and must be fresh. After every change ask `decide`, and again at `next_at`."""

    def __init__(self, slots: int, rules: Rules, max_parked: int | None = None) -> None:
        self.slots = slots
        self.service = ServiceTime()
        self._limit = slots
        self._max_parked = slots if max_parked is None else max_parked
        self._fifo = rules.policy == "fifo"
        self._preempting = -1 if self._fifo or rules.preempt == "never" else LEVELS.index(rules.preempt)
        self._score = Score(rules.weights, rules.ageing_s)
        self._door = Door(rules.max_waiting, rules.max_bytes, rules.patience)
        self._lanes = tuple(Lane() for _ in (LEVELS[:1] if self._fifo else LEVELS))
        self._deadlines = Heap()
        self._tickets: dict[str, Ticket] = {}
        self._running: dict[str, Ticket] = {}  # in the order in which they got their slots
        self._parked: dict[str, Ticket] = {}
        self._waiting: Counter[Level] = Counter()
        self._bytes = 0
        self._since_aged = AGED_EVERY
        self._wishes: dict[str, bool] = {}  # of readers whose generation kept its slot, since the last decision

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return len(self._running)

    @property
    def parked(self) -> int:
        """Requests that began and gave their slot away."""
        return len(self._parked)

    @property
    def waiting(self) -> int:
        """Requests that have not begun."""
        return self._waiting.total()

    @property
    def waiting_bytes(self) -> int:
        """What they cost in memory, about."""
        return self._bytes

    def waiting_at(self, level: Level) -> int:
        """How many of this level have not begun."""
        return self._waiting[level]

    @property
    def limit(self) -> int:
        """How many may run at a time, 1 to `slots`. Those over a new limit run to their end."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = min(max(1, limit), self.slots)

    @property
    def next_at(self) -> float | None:
        """When the next one expires, if nothing happens before."""
        first = self._deadlines.first()
        return None if first is None else first.deadline

    def offer(self, request: Request, now: float, affinity: float = 0.0) -> None:
        """Take a newcomer; `affinity` is the warm share of its prompt. Raises InvalidRequest or Overloaded."""
        _check(request, affinity)
        level, caller = request.level, request.caller
        rank = 0 if self._fifo else LEVELS.index(level)
        size = TICKET_BYTES + TOKEN_BYTES * len(request.prompt)
        turns = self._turns(rank)
        if turns > 0:
            share = 1.0 if self._fifo else SHARES[level]
            retry_after = self.service.retry_after(turns, self._limit)
            self._door.check_room(share, self.waiting, self._bytes, size, retry_after)
            if self.service.known and not self._fifo:
                self._door.check_wait(level, request.ttl_s, self.predicted_wait_s(level))
        session = (caller.tenant, caller.user, caller.session) if caller.session else None
        deadline = math.inf if request.ttl_s is None else now + request.ttl_s
        ticket = Ticket(request.id, level, rank, self._place(request, session, affinity, now), deadline, size, session)
        self._tickets[request.id] = ticket
        self._lanes[rank].add(ticket)
        self._waiting[level] += 1
        self._bytes += size
        if deadline < math.inf:
            self._deadlines.push(deadline, ticket)
        if session:
            self._score.saw(session, now)

    def remove(self, id: str) -> bool:
        """Drop one that has not begun, at once; False when there is no such."""
        ticket = self._tickets.get(id)
        if ticket is None or ticket.state != "waiting":
            return False
        self._forget_waiting(ticket)
        return True

    def release(self, id: str, now: float) -> None:
        """One that began has ended."""
        ticket = self._tickets.pop(id)
        self._stop(ticket, now)
        self._lanes[ticket.rank].leave(ticket, "gone")
        self._parked.pop(id, None)
        self.service.observe(ticket.ran_s)
        if ticket.session:
            self._score.saw(ticket.session, now)

    def hold(self, id: str, held: bool) -> None:
        """The reader of one that began lags, or has caught up. Others are ignored."""
        ticket = self._tickets.get(id)
        if ticket is None or ticket.state == "waiting" or ticket.lags == held:
            return
        ticket.lags = held
        if ticket.state == "running":
            self._wishes[id] = held  # it keeps its slot until `decide` finds room to park it
        elif held:
            self._lanes[ticket.rank].leave(ticket, "parked")
        else:
            self._lanes[ticket.rank].add(ticket)

    def decide(self, now: float) -> Decision:
        """What happens now; the queue takes it as done."""
        expired = self._expire(math.nextafter(now, -math.inf))
        parked = [id for id, held in self._wishes.items() if held]
        resumed = [id for id, held in self._wishes.items() if not held]
        self._wishes.clear()
        self._park_laggards(now)
        started: list[str] = []
        while len(self._running) < self._limit and (turn := self._next_turn()) is not None:
            self._run(*turn, now, resumed, started)
        while (urgent := self._urgent()) is not None and (victim := self._lowest_below(urgent.rank)) is not None:
            parked.append(victim.id)
            self._park(victim, now)
            self._run(urgent, False, now, resumed, started)
        expired += self._expire(now)  # only now, so that a time to live of 0 means now or never
        return Decision(tuple(expired), tuple(parked), tuple(resumed), tuple(started))

    def predicted_wait_s(self, level: Level) -> float:
        """How long a newcomer of this level would wait for its slot, as things stand."""
        return self.service.wait_s(self._turns(0 if self._fifo else LEVELS.index(level)), self._limit)

    def _place(self, request: Request, session: tuple[str, str, str] | None, affinity: float, now: float) -> float:
        if self._fifo:
            return now
        freshness = self._score.freshness(request.level, session, now) if session else 0.0
        return self._score.place(request.level, freshness, affinity, now)

    def _turns(self, rank: int) -> int:
        """How many slots must become free until a newcomer has one; 0 or less where it need not wait."""
        ahead = sum(len(lane) for lane in self._lanes[: rank + 1])
        room = max(0, self._limit - len(self._running))
        if rank <= self._preempting:
            below = sum(ticket.rank > rank and not ticket.aged for ticket in self._running.values())
            room += min(below, self._max_parked - len(self._parked))
        return ahead + 1 - room

    def _next_turn(self) -> tuple[Ticket, bool] | None:
        """Who runs next, and whether it passes a higher level by its age."""
        lanes = [lane for lane in self._lanes if len(lane)]
        if not lanes:
            return None
        best = min(lanes, key=Lane.place)
        if best is not lanes[0] and self._since_aged < AGED_EVERY - 1:
            best = lanes[0]
        ticket = best.first()
        return None if ticket is None else (ticket, best is not lanes[0])

    def _urgent(self) -> Ticket | None:
        """The first of those who wait and may take a slot from others."""
        for lane in self._lanes[: self._preempting + 1]:
            if len(lane):
                return lane.first()
        return None

    def _lowest_below(self, rank: int) -> Ticket | None:
        """Who makes room for `rank`; None where nobody can. Readers that lag lose nothing, so they come first."""
        if len(self._parked) >= self._max_parked:
            return None
        candidates = [t for t in self._running.values() if t.lags or (t.rank > rank and not t.aged)]
        # The last of the equal ones, so that the one which began last is found.
        return max(reversed(candidates), key=lambda ticket: (ticket.lags, ticket.rank), default=None)

    def _park_laggards(self, now: float) -> None:
        """Those whose reader lags give up their slots; they may fill half of the room, the rest is for preemption."""
        for ticket in [ticket for ticket in self._running.values() if ticket.lags]:
            if len(self._parked) < (self._max_parked + 1) // 2:
                self._park(ticket, now)

    def _run(self, ticket: Ticket, aged: bool, now: float, resumed: list[str], started: list[str]) -> None:
        if ticket.state == "parked":
            del self._parked[ticket.id]
            self._lanes[ticket.rank].leave(ticket, "running")
            resumed.append(ticket.id)
        else:
            self._count_out(ticket)
            self._lanes[ticket.rank].leave(ticket, "running")
            started.append(ticket.id)
        ticket.began, ticket.aged = now, aged
        self._running[ticket.id] = ticket
        self._since_aged = 0 if aged else self._since_aged + 1

    def _expire(self, now: float) -> list[str]:
        expired = []
        while (ticket := self._deadlines.first()) is not None and ticket.deadline <= now:
            self._forget_waiting(ticket)
            expired.append(ticket.id)
        return expired

    def _forget_waiting(self, ticket: Ticket) -> None:
        self._count_out(ticket)
        self._lanes[ticket.rank].leave(ticket, "gone")
        del self._tickets[ticket.id]

    def _count_out(self, ticket: Ticket) -> None:
        """It does not wait for its first slot any more."""
        self._waiting[ticket.level] -= 1
        self._bytes -= ticket.size
        if ticket.deadline < math.inf:
            self._deadlines.note_gone()

    def _stop(self, ticket: Ticket, now: float) -> None:
        if self._running.pop(ticket.id, None) is not None:
            ticket.ran_s += now - ticket.began

    def _park(self, ticket: Ticket, now: float) -> None:
        self._stop(ticket, now)
        ticket.state = "parked"
        self._parked[ticket.id] = ticket
        if not ticket.lags:
            self._lanes[ticket.rank].add(ticket)


def _check(request: Request, affinity: float) -> None:
    if request.level not in LEVELS:
        raise InvalidRequest(f"There is no level {request.level!r}; there are {', '.join(LEVELS)}.", param="level")
    if request.ttl_s is not None and not request.ttl_s >= 0:
        raise InvalidRequest(f"A time to live must be 0 seconds or more, not {request.ttl_s:g}.", param="ttl_s")
    if not 0 <= affinity <= 1:
        raise ValueError(f"Affinity is a share, 0 to 1, not {affinity:g}.")
