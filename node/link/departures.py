"""What leaves a link next: which reply's packet, or which piece of a flight, and when the path may take it.

The path's rate is kept by moving `free_at` on with every packet. Where it is the limit, due packets wait for it, news
gather meanwhile, and the one that waited longest goes first.
"""

from __future__ import annotations

import math

from node.link import packet
from node.link.packet import Block, Flight, Stop
from node.link.path import OVERHEAD, Path
from node.link.receiver import Receiver
from node.link.schedule import BURSTY, FIRST_TAIL_S, SHORT_TAIL_S, TAIL_S, Kind, Schedule
from node.link.sender import Sender

SILENT_S = 3.0
PER_PACKET = OVERHEAD + packet.HEAD.size + 16
LEAST_ROOM = 64

_BUDGET = 1150
_LEAST_BUDGET = 24
_HOLD_S = 0.4  # of a full path's time that one packet may take
_EARLY_S = 0.01
_AT_FIRST_S = 1.0  # of the rate that may go at once before anything is known of the path
_AT_FIRST_OVERDUE_S = 1.0  # what was sent so long ago goes again
_REORDER_S = 0.02
_ACK_WAIT_S = 0.3  # on a full path acknowledgements are few and wait for what they can travel with
_LATE_COPY_S = 0.02  # who is so busy does not send twice what it can hardly send once
_SPREAD_S = 0.01  # a flight takes at least so long: it must outlast a short burst


class Stream:
    """Both directions of a slot."""

    __slots__ = ("delivered", "receiver", "schedule", "sender", "stopping")

    def __init__(self, sender: Sender, receiver: Receiver) -> None:
        self.sender = sender
        self.receiver = receiver
        self.schedule = Schedule()
        self.stopping = False
        self.delivered = False

    @property
    def active(self) -> bool:
        """Whether packets must go."""
        return self.sender.waiting or self.stopping


class Departures:
    """The outgoing half of a link, but for acknowledgements and the link's own affairs."""

    def __init__(self) -> None:
        self.path = Path()
        self.streams: dict[int, Stream] = {}
        self._busy: dict[int, Stream] = {}  # those of which packets may have to go: finished ones cost nothing more
        self._flights: list[tuple[float, Flight]] = []
        self._free_at = -math.inf
        self.last = -math.inf  # when a packet that asks for an acknowledgement went out
        self._unanswered = math.inf  # when the oldest without an answer after it went out

    def wake(self, slot: int) -> Stream:
        """The stream of a slot of which something is to be said."""
        if slot not in self._busy and not any(stream.active for stream in self._busy.values()):
            self._unanswered = math.inf  # all was settled: an answer that got lost since says nothing of the path
        stream = self._busy[slot] = self.streams[slot]
        return stream

    def unacknowledged(self) -> int:
        """Bytes of text that have not been acknowledged, or were not even sent."""
        return sum(stream.sender.unacknowledged for stream in self._busy.values())

    def _awake(self, now: float) -> list[tuple[float, int]]:
        """When a packet of each busy stream goes, silence considered; those that have become idle are forgotten."""
        if not self._busy:
            return []
        pto = self.path.pto
        awake = [(stream.schedule.when(pto), slot) for slot, stream in self._busy.items() if stream.active]
        if now - self._unanswered > SILENT_S:
            awake = [(max(when, self.last + 1.0), slot) for when, slot in awake]
        if len(awake) < len(self._busy):
            self._busy = {slot: self._busy[slot] for _, slot in awake}
        return awake

    def left(self, number: int, size: int, eliciting: bool, now: float) -> None:
        """A datagram of `size` bytes went out; one that only acknowledges costs the next nothing but on a full path."""
        path = self.path
        free_at = max(self._free_at, now - (_EARLY_S if path.measured else _AT_FIRST_S))
        if eliciting or (path.tight and free_at < now + _HOLD_S):  # they never wait, and must not hold up news for good
            self._free_at = free_at + (size + OVERHEAD) / path.rate
        if not eliciting:
            return
        self.path.sent(number, size, now)
        self.last = now
        self._unanswered = min(self._unanswered, now)

    def answered(self, as_of: float) -> None:
        """The other end has seen the packet that went out then."""
        self._unanswered = math.inf if as_of >= self.last else as_of

    def passed_over(self, as_of: float, now: float) -> None:
        """What a reply sent last was before a packet that came, and nothing was heard of it: it is sent again."""
        before = as_of - max(_REORDER_S, self.path.srtt / 8)
        for stream in self._busy.values():
            if stream.active and stream.schedule.last_sent < before:
                stream.schedule.repeat(now)

    def next_at(self, now: float) -> float:
        """When something is due and may go; infinity where nothing is."""
        awake = self._awake(now)
        due = min(awake)[0] if awake else math.inf
        if self._flights:
            due = min(due, self._flights[0][0])
        return due if due > self._free_at else self._free_at

    def news(self, now: float, room: int, *, flights: bool) -> list[Block]:
        """The next flight's shard or stream's blocks that are due and may go."""
        if self._free_at > now:
            return []
        if self._flight_due(now, room):
            return [self._flights.pop(0)[1]]
        blocks: list[Block] = []
        more: list[Block] = []
        for when, slot in sorted(self._awake(now)):  # the longest due first
            if when > now:
                break
            room -= sum(len(packet.encode(block)) for block in more)
            if room < LEAST_ROOM:
                break
            more = self._from(self.streams[slot], now, room, flights)
            blocks += more
        if not blocks and self._flight_due(now, room):
            return [self._flights.pop(0)[1]]
        return blocks

    def _flight_due(self, now: float, room: int) -> bool:
        if not self._flights or self._flights[0][0] > now:
            return False
        return packet.FLIGHT_HEAD + len(self._flights[0][1].shard) <= room

    def _from(self, stream: Stream, now: float, room: int, flights: bool) -> list[Block]:
        sender, schedule, path = stream.sender, stream.schedule, self.path
        when, kind = schedule.due(path.pto)
        stop: list[Block] = [Stop(sender.slot)] if stream.stopping else []
        most = room - 2 * len(stop)
        budget = min(most, self._budget())
        if kind is Kind.COPY:
            wanted = now - when < _LATE_COPY_S and schedule.may_copy(now)
            blocks = sender.copy(budget, bursts=path.mean_burst >= BURSTY) if wanted else []
            schedule.skip()
            return [*stop, *blocks] if blocks else []
        narrow = path.narrow
        if sender.backlog > _BUDGET and not path.tight and flights:
            self._launch(sender, now)
            schedule.plan(now, path.loss, path.mean_burst, sender.end is not None, True)
            return []
        overdue = path.srtt + max(0.02, 2 * path.rttvar) if path.measured else _AT_FIRST_OVERDUE_S
        overdue += _ACK_WAIT_S if path.tight else 0.0
        symbols = 0 if narrow else min(6, max(2, path.burst_q95))
        blocks = sender.compose(budget, now, overdue, symbols, most, alone=len(self._busy) == 1 and path.measured)
        more = sender.fresh
        schedule.sent(kind, now, more)
        if kind is Kind.NEWS and not more:
            pressed = narrow or self._free_at > now - _EARLY_S / 2
            tail = SHORT_TAIL_S if path.tight else TAIL_S if path.measured else FIRST_TAIL_S
            schedule.plan(now, path.loss, path.mean_burst, sender.end is not None, pressed, tail)
        return [*stop, *blocks]

    def _launch(self, sender: Sender, now: float) -> None:
        """Put a backlog on its way as a flight, spread over time."""
        start = max(now, self._flights[-1][0] if self._flights else now)
        pieces = sender.launch(self.path.loss, now)
        size = len(pieces[0].shard) + PER_PACKET
        spacing = max(size / self.path.rate, _SPREAD_S / len(pieces))
        sender.lands(start + spacing * len(pieces) + 1.25 * self.path.srtt + 0.05)
        self._flights.extend((start + spacing * i, piece) for i, piece in enumerate(pieces))

    def _budget(self) -> int:
        if not self.path.tight:
            return _BUDGET
        return max(_LEAST_BUDGET, min(_BUDGET, int(self.path.rate * _HOLD_S) - PER_PACKET))
