"""What waits in one line, ordered by place; pure. Entries of who left stay in a heap until they come up or are many."""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass
from typing import Literal

from node.generation import Level

_FEW_LEFT = 64  # entries of tickets that are gone, for which cleaning up is not worth it

State = Literal["waiting", "running", "parked", "gone"]


@dataclass(slots=True, eq=False)
class Ticket:
    """One request in the queue's eyes. `rank` is its line, 0 first; `place` as `score` has it.

    `parked`: it began and lost its slot. `lags`: its reader does, so that it may not go on; `lags_at` is when that was
    first seen. `aged`: it ran before those of a higher level, by its age. `since` is when it came; `ran_s` how long it
    held a slot before `began`.
    """

    id: str
    level: Level
    rank: int
    place: float
    deadline: float
    size: int
    since: float
    session: tuple[str, str, str] | None = None
    state: State = "waiting"
    lags: bool = False
    lags_at: float = math.inf
    aged: bool = False
    began: float = 0.0
    ran_s: float = 0.0


class Heap:
    """Tickets that wait, by a number of each; the smallest comes first, the earlier of two equal ones."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Ticket]] = []
        self._pushed = itertools.count()
        self._gone = 0

    def push(self, number: float, ticket: Ticket) -> None:
        """O(log n)."""
        heapq.heappush(self._entries, (number, next(self._pushed), ticket))

    def first(self) -> Ticket | None:
        """The first that still waits; O(log n) for each that left."""
        entries = self._entries
        while entries and entries[0][2].state != "waiting":
            heapq.heappop(entries)
            self._gone = max(0, self._gone - 1)
        return entries[0][2] if entries else None

    def note_gone(self) -> None:
        """One that was pushed waits no more. Amortized O(1): half of the entries are dropped at a time."""
        self._gone += 1
        if self._gone > _FEW_LEFT + len(self._entries) // 2:
            self._entries = [entry for entry in self._entries if entry[2].state == "waiting"]
            heapq.heapify(self._entries)
            self._gone = 0

    def __len__(self) -> int:
        """Entries, those of tickets that are gone included."""
        return len(self._entries)


class Lane:
    """One line: those who lost their slot and may have it back, then those who never had one."""

    def __init__(self) -> None:
        self._heap = Heap()
        self._returning: dict[str, Ticket] = {}
        self.newcomers = 0

    def __len__(self) -> int:
        return self.newcomers + len(self._returning)

    def add(self, ticket: Ticket) -> None:
        """It waits for a slot, its first or its next."""
        if ticket.state == "parked":
            self._returning[ticket.id] = ticket
        else:
            self._heap.push(ticket.place, ticket)
            self.newcomers += 1

    def leave(self, ticket: Ticket, state: State) -> None:
        """It waits here no more, if it did, and is `state` instead."""
        was, ticket.state = ticket.state, state
        if was == "waiting":
            self.newcomers -= 1
            self._heap.note_gone()
        else:
            self._returning.pop(ticket.id, None)  # one that lags was not in line

    def first(self) -> Ticket | None:
        """Whose turn it is."""
        if self._returning:
            return next(iter(self._returning.values()))
        return self._heap.first()

    def since(self, now: float) -> float:
        """When the newcomer came whose turn is next; `now` where there is none."""
        newcomer = self._heap.first()
        return now if newcomer is None else newcomer.since

    def place(self) -> float:
        """The best place in it, infinite when nobody waits: the line moves up with whoever waits longest."""
        newcomer = self._heap.first()
        places = [ticket.place for ticket in self._returning.values()]
        return min(places + ([] if newcomer is None else [newcomer.place]), default=math.inf)
