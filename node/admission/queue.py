"""Who runs now, who waits, who makes room; pure, `now` in seconds is passed in, decisions come out.

- Of those who wait, the one with the best place (see `score`) runs when a slot is free. Who lost its slot has it back
  before newcomers of its level.
- Levels are strict for `ageing_s` seconds of waiting; then a request goes before newcomers of the next level, and so
  on, and also where those that run displace it. One that passes a higher level by its age keeps its slot until it ends,
  and then the next may; only one slot in 8 is held so, and the next one waits until the last began `ageing_s` ago, so
  that a backlog of aged ones does not take from the urgent what they were promised. (With less than 4 slots, only
  every 8th start is.) Thus every wait ends: see `rules.wait_bound_s`.
- When an urgent one waits (one whose level may preempt) and no slot is free, the lowest level that runs makes room; of
  these the one that began last, since it has the least to keep or to read again. Each urgent one that runs takes
  `displaces` slots from the levels below. Readers that lag make room for anybody. Where nobody can be parked any more,
  who is displaced is set aside, as is one whose reader has lagged for seconds: it leaves the source, and begins again
  where it was.
- Who waited longer than its time to live is expired and never runs. Who may wait at all is the `door`'s business.

The policy "fifo" is the same with one line for all levels, arrival as place, and nobody refused but for want of room.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from node.admission.door import SHARES, Door, Pace, ServiceTime
from node.admission.lane import Heap, Lane, Ticket
from node.admission.rules import AGED_EVERY, Rules
from node.admission.score import Score
from node.admission.slots import Slots
from node.errors import InvalidRequest
from node.generation import LEVELS, Level, Request

TICKET_BYTES, TOKEN_BYTES = 2048, 36  # what one that waits costs: the request, its places here, its prompt's numbers


@dataclass(frozen=True, slots=True)
class Decision:
    """Ids, to be acted on in this order. `park` and `resume` are `hold` in a source's terms; `unseat` is `cancel`.

    One that was unseated and is resumed is to be submitted again, with what it has said.
    """

    expire: tuple[str, ...] = ()
    park: tuple[str, ...] = ()
    unseat: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    start: tuple[str, ...] = ()


class AdmissionQueue:
    """Ids are any text and must be fresh. After every change ask `decide`, and again at `next_at`."""

    def __init__(self, slots: int, rules: Rules, max_parked: int | None = None) -> None:
        self.service = ServiceTime()
        self._fifo = rules.policy == "fifo"
        self._rules = rules
        most = slots if max_parked is None else max_parked
        self._slots = Slots(slots, most, rules.urgent, rules.displaces, rules.ageing_s)
        self._score = Score(rules.weights, rules.ageing_s)
        self._door = Door(rules.max_waiting, rules.max_bytes)
        self._lanes = tuple(Lane() for _ in (LEVELS[:1] if self._fifo else LEVELS))
        self._paces = tuple(Pace() for _ in self._lanes)
        self._deadlines = Heap()
        self._tickets: dict[str, Ticket] = {}
        self._waiting: Counter[Level] = Counter()
        self._bytes = 0
        self._since_aged = AGED_EVERY
        self._wishes: dict[str, bool] = {}  # of readers whose generation kept its slot, since the last decision

    @property
    def slots(self) -> int:
        """How many there are."""
        return self._slots.count

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return len(self._slots.running)

    @property
    def parked(self) -> int:
        """Requests that began and gave their slot away."""
        return len(self._slots.parked) + len(self._slots.set_aside)

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
        return self._slots.limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._slots.limit = limit

    def limit_aged(self, limited: bool) -> None:
        """Whether who runs by its age must be within the limit, too; else only within the slots."""
        self._slots.strict = limited

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
        wait_s = self.predicted_wait_s(level, now)
        if wait_s > 0 and not request.continued:  # what another life has begun waits in any case
            share = 1.0 if self._fifo else SHARES[level]
            self._door.check_room(share, self.waiting, self._bytes, size, wait_s)
            if self.service.known and self._lanes[rank].newcomers and not self._fifo:  # the first in line always may
                self._door.check_wait(level, request.ttl_s, self._rules.patience_s(level), wait_s)
        session = (caller.tenant, caller.user, caller.session) if caller.session else None
        deadline = math.inf if request.ttl_s is None else now + request.ttl_s
        place = self._place(request, session, affinity, now)
        ticket = Ticket(request.id, level, rank, place, deadline, size, now, session)
        self._tickets[request.id] = ticket
        self._lanes[ticket.rank].add(ticket)
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
        self._slots.leave(ticket, now)
        self._lanes[ticket.rank].leave(ticket, "gone")
        self.service.observe(ticket.ran_s)
        if ticket.session:
            self._score.saw(ticket.session, now)

    def hold(self, id: str, held: bool) -> None:
        """The reader of one that began lags, or has caught up. Others are ignored."""
        ticket = self._tickets.get(id)
        if ticket is None or ticket.state == "waiting" or ticket.lags == held:
            return
        ticket.lags, ticket.lags_at = held, math.inf
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
        for ticket in self._slots.running.values():
            ticket.lags_at = min(ticket.lags_at, now) if ticket.lags else math.inf
        self._park_laggards(now)
        started: list[str] = []
        unseated: list[str] = []
        while any(map(len, self._lanes)):
            self._park_laggards(now)  # who has just had its slot back left room for one
            if (turn := self._next_turn(now)) is not None:
                self._run(*turn, now, resumed, started)
            elif self._slots.free > 0 or not self._unseat(unseated, now):
                break
        while (urgent := self._urgent()) is not None and (victim := self._slots.victim(urgent.rank)) is not None:
            self._displace(victim, now, parked, unseated, resumed)
            self._run(urgent, False, now, resumed, started)
        while self._slots.free_for_lower < 0 and (victim := self._slots.victim(self._slots.urgent)) is not None:
            self._displace(victim, now, parked, unseated, resumed)
        expired += self._expire(now)  # only now, so that a time to live of 0 means now or never
        return Decision(tuple(expired), tuple(parked), tuple(unseated), tuple(resumed), tuple(started))

    def predicted_wait_s(self, level: Level, now: float) -> float:
        """How long a newcomer of this level would wait for a slot: by what is before it, and by how its line moves."""
        rank = 0 if self._fifo else LEVELS.index(level)
        turns = sum(len(lane) for lane in self._lanes[: rank + 1]) + 1 - self._slots.open_to(rank)
        if turns <= 0:
            return 0.0
        lane = self._lanes[rank]
        by_line = self._paces[rank].wait_s(lane.newcomers, lane.since(now), now)
        return max(self.service.wait_s(turns, self.limit), by_line)

    def _place(self, request: Request, session: tuple[str, str, str] | None, affinity: float, now: float) -> float:
        if self._fifo:
            return now
        freshness = self._score.freshness(request.level, session, now) if session else 0.0
        return self._score.place(request.level, freshness, affinity, now)

    def _next_turn(self, now: float) -> tuple[Ticket, bool] | None:
        """Who runs next, and whether it passes a higher level by its age."""
        lanes = [lane for lane in self._lanes if len(lane)]
        if not lanes:
            return None
        best = min(lanes, key=Lane.place)
        may_age = self._slots.open_to_aged(now) and (not self._slots.small or self._since_aged >= AGED_EVERY - 1)
        if not may_age:
            best = lanes[0]
        ticket = best.first()
        if ticket is None:
            return None
        urgent = ticket.rank <= self._slots.urgent
        if self._slots.free > 0 and (urgent or self._slots.free_for_lower >= 1):
            return ticket, best is not lanes[0]
        return self._by_age(now) if may_age and self._slots.free_for_aged > 0 else None

    def _by_age(self, now: float) -> tuple[Ticket, bool] | None:
        """Of those that are displaced, who goes before newcomers of the level above it that runs."""
        low = min(self._lanes[self._slots.urgent + 1 :], key=Lane.place, default=None)
        ticket, highest = None if low is None else low.first(), self._slots.highest
        if low is None or ticket is None or highest is None or highest >= ticket.rank:
            return None
        return (ticket, True) if low.place() < self._score.place(LEVELS[highest], 0.0, 0.0, now) else None

    def _urgent(self) -> Ticket | None:
        """The first of those who wait and may take a slot from others."""
        for lane in self._lanes[: self._slots.urgent + 1]:
            if len(lane):
                return lane.first()
        return None

    def _run(self, ticket: Ticket, aged: bool, now: float, resumed: list[str], started: list[str]) -> None:
        if ticket.state == "parked":
            resumed.append(ticket.id)
        else:
            self._count_out(ticket)
            self._paces[ticket.rank].moved(ticket.since, now)
            started.append(ticket.id)
        self._lanes[ticket.rank].leave(ticket, "running")
        self._slots.take(ticket, now, aged)
        self._since_aged = 0 if aged else self._since_aged + 1

    def _park_laggards(self, now: float) -> None:
        for ticket in self._slots.laggards():
            self._park(ticket, now)

    def _displace(self, ticket: Ticket, now: float, parked: list[str], unseated: list[str], resumed: list[str]) -> None:
        """Its slot is for another."""
        room = self._slots.room_to_park
        if ticket.id in resumed:  # its reader has just caught up: whoever acts on this would let it go on, last of all
            resumed.remove(ticket.id)
        (parked if room else unseated).append(ticket.id)
        self._park(ticket, now, aside=not room)

    def _park(self, ticket: Ticket, now: float, *, aside: bool = False) -> None:
        (self._slots.put_aside if aside else self._slots.park)(ticket, now)
        if not ticket.lags:
            self._lanes[ticket.rank].add(ticket)

    def _unseat(self, unseated: list[str], now: float) -> bool:
        """Free a slot that is held for a reader who stalled; False where there is none, or it was one too many."""
        if (stalled := self._slots.stalled(now)) is None:
            return False
        unseated.append(stalled.id)
        self._slots.put_aside(stalled, now)
        return self._slots.free > 0

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


def _check(request: Request, affinity: float) -> None:
    if request.level not in LEVELS:
        raise InvalidRequest(f"There is no level {request.level!r}; there are {', '.join(LEVELS)}.", param="level")
    if request.ttl_s is not None and not request.ttl_s >= 0:
        raise InvalidRequest(f"A time to live must be 0 seconds or more, not {request.ttl_s:g}.", param="ttl_s")
    if not 0 <= affinity <= 1:
        raise ValueError(f"Affinity is a share, 0 to 1, not {affinity:g}.")
