"""What is known of one network path: its losses and bursts, its round trip, its queue; and how much may be sent.

- Losses: an average over some 64 packets, from acknowledgements of packets. What FEC repairs counts as lost all the
  same: FEC must not hide congestion. A packet is lost when three later ones have come.
- Bursts: a histogram of how many packets in a row were lost; old bursts fade.
- Round trip: srtt and rttvar as in RFC 9002, and the least of the last 20 to 40 seconds. The former two count what
  either end was late, so that a busy one is not asked the more often; the latter does not, for that is no queue.
- Rate: at most max(4 kB/s, 2 × TFRC), with the equation and the loss intervals of RFC 5348 and the packet size of
  RFC 4828 (small packets are counted as full ones: routers drop packets, not bytes). Before the first loss it is
  half of `FIRST_RATE`, before the first round trip 4 kB/s.
- Queue: where the round trip, less what the packet's own length takes, grows by more than `QUEUE_S` over its least,
  the path is full, whatever the equation says (a 4.8 kbit/s radio loses nothing and delays everything). From then on
  the limit is what was seen to arrive, less in proportion to the queue, so that a queue of `_DRAIN_S` would halt it;
  with none it is 0.25 % less. Where no queue shows, it grows over what arrives the faster the longer that lasts, which
  ends in a queue that comes and goes and is 15 ms at most; and fast where it is not used, until it is no limit any
  more. A gentle slope is what a delay of a whole round trip bears without swinging. Silence empties a queue, and says
  nothing of what can arrive.
"""

from __future__ import annotations

import math

from node.link.packet import BITMAP, Ack

LEAST_RATE = 4000.0  # bytes a second
FIRST_RATE = 128e3
OVERHEAD = 28  # IPv4 and UDP headers
QUEUE_S = 0.06

_REORDER = 3
_NOMINAL = 1460  # RFC 4828
_WEIGHTS = (1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2)  # RFC 5348, 5.4
_DRAIN_S = 2.0
_LASTING_S = 0.5
_SLOW_S = 1.0  # a round trip that is longer has a queue in it, or comes to that
_IDLE_S = 0.5  # without a packet: more than the slowest path's own pace
_DOUBT = 0.9
_LESS, _LEAST_SHARE = 0.0025, 0.5  # of what arrives: below it without a queue, and at most
_CALM_S, _CALM_QUEUE_S = 2.0, 0.005  # without a queue for so long, the limit grows
_GROWTH = 0.002  # above what arrives, for each second of calm
_UNUSED, _FREE_GROWTH = 1.25, 0.5  # where the limit is so many times what arrives, nobody feels it
_SLOWEST = 200.0  # bytes a second; a limit below is a queue that others made
_BURSTS = 16  # longest burst told apart
_FADE = 0.98  # what a burst still counts after the next
_FIRST_LOSS = 0.02  # expected before anything was seen: some protection from the start
_FIRST_RTT = 0.1
_WAIT_S = 0.35  # an acknowledgement may wait so long on purpose; beyond, the other end is late
_LOG = 512  # most acknowledged packets, and rates, that are remembered


class Path:
    """One path's estimates. Kept across replies; a new path starts afresh."""

    def __init__(self) -> None:
        self.loss = _FIRST_LOSS
        self.srtt = _FIRST_RTT
        self.rttvar = _FIRST_RTT / 2
        self.pto = self.srtt + 4 * self.rttvar  # seconds after which an unanswered packet is followed by another
        self.packets_sent = self.packets_lost = self.bytes_sent = 0
        self.measured = False
        self._flying: dict[int, tuple[float, int]] = {}  # packet number -> when sent, bytes; in order
        self._received: set[int] = set()  # of those that fly
        self.largest = -1  # packet number that was acknowledged
        self._run = 0
        self._bursts = [0.0] * (_BURSTS + 1)
        self.mean_burst = 1.0  # packets lost in a row, on average; 1 where nothing was lost yet
        self.burst_q95 = 1  # the length that 95 % of the bursts do not exceed
        self._events = _LossEvents()
        self._floor = _Floor()
        self._arrived = _Arrived()
        self._limit = math.inf
        self._queue = 0.0
        self._sent_at = math.inf
        self._calm_since = self._adjusted = self._clear_at = -math.inf
        self._judged, self._judged_queue = -math.inf, 0.0

    def sent(self, number: int, size: int, now: float) -> None:
        """A packet that asks for an acknowledgement went out; `size` is the datagram's."""
        if (idle := now - self._sent_at) > _IDLE_S:
            self._queue = max(0.0, self._queue - idle)  # it became shorter meanwhile
        self._sent_at = now
        self._flying[number] = (now, size + OVERHEAD)
        self.packets_sent += 1
        self.bytes_sent += size + OVERHEAD
        if len(self._flying) > 4 * BITMAP:
            self._decide(next(iter(self._flying)), lost=True)  # nobody speaks of it any more

    def acked(self, ack: Ack, now: float, came: float | None = None) -> float | None:
        """Learn from an acknowledgement; gives when the largest packet was sent, None if that was known already.

        `came` is when it came, where it is read later.
        """
        came = now if came is None else came
        flight = self._flying.get(ack.largest)
        first_time = flight is not None and ack.largest not in self._received
        if ack.largest > self.largest:
            self.largest = ack.largest
        for number in [number for number in self._flying if number <= ack.largest]:
            back = ack.largest - number - 1
            if back < 0 or (back < BITMAP and ack.bitmap >> back & 1):
                self._arrive(number)
        if flight is not None and first_time:
            self._arrived.mark(came - ack.delay)
            trip, late = came - flight[0] - ack.delay, max(0.0, ack.delay - _WAIT_S) + now - came
            self._observe_rtt(max(1e-4, trip + late), max(1e-4, trip), flight[1], now)
        self._settle()
        return flight[0] if flight is not None and first_time else None

    def _arrive(self, number: int) -> None:
        if number not in self._received:
            self._received.add(number)
            self._arrived.total += self._flying[number][1]

    def _settle(self) -> None:
        """Decide, in order, about every packet that can be decided about."""
        while self._flying:
            number = next(iter(self._flying))
            if number in self._received:
                self._decide(number, lost=False)
            elif number <= self.largest - _REORDER:
                self._decide(number, lost=True)
            else:
                return

    def _decide(self, number: int, *, lost: bool) -> None:
        when, _ = self._flying.pop(number)
        self._received.discard(number)
        self.loss += (lost - self.loss) / 64
        if lost:
            self.packets_lost += 1
            self._run += 1
            self._events.lost(when, self.srtt)
        elif self._run:
            self._bursts = [count * _FADE for count in self._bursts]
            self._bursts[min(self._run, _BURSTS)] += 1
            self._run = 0
            self.mean_burst, self.burst_q95 = _mean_burst(self._bursts), _burst_q95(self._bursts)
        self._events.passed()

    def _observe_rtt(self, rtt: float, trip: float, size: int, now: float) -> None:
        """A round trip, and what of it was on the way: only that can tell of a queue."""
        if not self.measured:
            self.measured = True
            self.srtt, self.rttvar = rtt, rtt / 2
        else:
            self.rttvar += (abs(self.srtt - rtt) - self.rttvar) / 4
            self.srtt += (rtt - self.srtt) / 8
        self.pto = self.srtt + max(0.02, 4 * self.rttvar)
        capacity = self._arrived.capacity(now, self.srtt, full=self._queue > QUEUE_S)
        queue = self._floor.above(trip, size, capacity if self.tight else math.inf, now)
        self._queue += (max(0.0, queue) - self._queue) / 2
        if queue <= QUEUE_S:
            self._clear_at = now
        self._adjust(capacity, now)

    def _adjust(self, capacity: float, now: float) -> None:
        """Move the limit, if there is or must be one; `capacity` (bytes a second, or 0) was seen to arrive."""
        if self._queue > _CALM_QUEUE_S or now - self._adjusted > _CALM_S:
            self._calm_since = now  # in silence, too: it says nothing
        calm = now - self._calm_since - _CALM_S
        step, self._adjusted = min(1.0, now - self._adjusted), now
        lasting = now - self._clear_at > _LASTING_S  # a busy machine is late now and then: that is no queue
        if not self.tight and not (capacity and lasting and self._queue > QUEUE_S):
            return
        if self.tight and now - self._judged > self.srtt:
            if self._queue > max(QUEUE_S, self._judged_queue):
                self._arrived.doubt()  # it should have become shorter
            self._judged, self._judged_queue = now, self._queue
        unused = self._limit > _UNUSED * capacity and self._queue <= QUEUE_S
        if not self.tight or (calm < 0 and not unused and capacity):
            self._limit = max(_SLOWEST, capacity * max(_LEAST_SHARE, 1 - _LESS - self._queue / _DRAIN_S))
            return
        if unused:
            self._limit *= 1 + step * _FREE_GROWTH
        else:
            self._limit = max(self._limit, capacity * (1 + _GROWTH * calm * calm))
        if self._limit > FIRST_RATE:
            self._limit = math.inf

    @property
    def min_rtt(self) -> float:
        """The least round trip seen lately, in seconds."""
        return self._floor.least if self.measured else self.srtt

    @property
    def tight(self) -> bool:
        """Whether the path's own capacity is the limit, not good manners."""
        return self._limit < math.inf

    @property
    def narrow(self) -> bool:
        """Whether few bytes must do: the path is full, or it may be, for all that is known."""
        return self.tight or not self.measured or self.srtt > _SLOW_S

    @property
    def rate(self) -> float:
        """Bytes a second that may be sent, headers included."""
        if not self.measured:
            return LEAST_RATE
        return min(self._limit, max(LEAST_RATE, 2 * self._events.tfrc(self.srtt)))


def _mean_burst(bursts: list[float]) -> float:
    total = sum(bursts)
    return sum(length * count for length, count in enumerate(bursts)) / total if total > 0.5 else 1.0


def _burst_q95(bursts: list[float]) -> int:
    total, seen = sum(bursts), 0.0
    for length, count in enumerate(bursts):
        seen += count
        if seen >= 0.95 * total > 0:
            return max(1, length)
    return 1


class _LossEvents:
    """RFC 5348's loss events: losses within one round trip are one; intervals are counted in packets."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._open = 0
        self._intervals: list[int] = []  # the newest first

    def lost(self, when: float, rtt: float) -> None:
        if self._began is not None and when <= self._began + rtt:
            return
        if self._began is not None:
            self._intervals = [self._open, *self._intervals[: len(_WEIGHTS) - 1]]
        self._began = when
        self._open = 0

    def passed(self) -> None:
        self._open += 1

    def tfrc(self, rtt: float) -> float:
        """Bytes a second by the throughput equation (RFC 5348, 3.1)."""
        if self._began is None:
            return FIRST_RATE / 2
        closed = self._intervals
        mean = max(_mean([self._open, *closed[:7]]), _mean(closed)) if closed else self._open
        p = min(1.0, 1 / max(1.0, mean))
        root = math.sqrt(2 * p / 3)
        return _NOMINAL / (rtt * (root + 12 * math.sqrt(3 * p / 8) * p * (1 + 32 * p * p)))


def _mean(intervals: list[int]) -> float:
    weights = _WEIGHTS[: len(intervals)]
    return sum(w * i for w, i in zip(weights, intervals, strict=True)) / sum(weights)


class _Floor:
    """The least round trip of the present and the last stretch of 20 seconds."""

    STRETCH = 20.0

    def __init__(self) -> None:
        self._since = -math.inf
        self._now = self._before = (math.inf, 0)  # and that packet's size

    @property
    def least(self) -> float:
        return min(self._now, self._before)[0]

    def above(self, rtt: float, size: int, capacity: float, now: float) -> float:
        """By how much a round trip is longer; on a slow path a longer packet takes its time, which is no queue.

        A shorter one is not said to have waited for that: where `capacity` is too low, it would never rise again.
        """
        if now - self._since > self.STRETCH:
            self._before, self._now, self._since = self._now, (rtt, size), now
        self._now = min(self._now, (rtt, size))
        least, its_size = min(self._now, self._before)
        return rtt - least - (max(0, size - its_size) / capacity if capacity else 0.0)


class _Arrived:
    """What was acknowledged; the most that arrived in a stretch of two round trips is what the path can carry."""

    MEMORY_S, SHORT_MEMORY_S, LONGEST_MEMORY_S, LEAST_S = 15.0, 5.0, 60.0, 0.5

    def __init__(self) -> None:
        self.total = 0  # bytes
        # Lists: they are short, and a deque costs 760 bytes before anything is in it.
        self._log: list[tuple[float, int]] = []  # (when it came, total by then)
        self._rates: list[tuple[float, float]] = []  # falling: what is no more than a later one is out

    def mark(self, came: float) -> None:
        """All of `total` had come at that time, by the other end's word: a late acknowledgement changes nothing."""
        if not self._log or came > self._log[-1][0]:
            self._log.append((came, self.total))
            del self._log[:-_LOG]

    def capacity(self, now: float, rtt: float, *, full: bool) -> float:
        """Bytes a second; 0 where too little is known. On a `full` path what arrives lately is all that it carries."""
        span = max(1.0, 2 * rtt)
        while len(self._log) > 2 and self._log[1][0] <= self._log[-1][0] - span:
            self._log.pop(0)
        if self._log and self._log[0][0] < self._log[-1][0] - 2 * span:
            self._log.pop(0)  # before a silence: what came after it says nothing of that time
        if len(self._log) >= 4:
            (begin, before), (end, after) = self._log[0], self._log[-1]
            if min(span / 2, self.LEAST_S if full else math.inf) <= end - begin <= 2 * span:
                self._note(now, (after - before) / (end - begin), self.SHORT_MEMORY_S if full else self.MEMORY_S)
        if self._rates and self._rates[-1][0] < now - self.LONGEST_MEMORY_S:
            self._rates.clear()
        return self._rates[0][1] if self._rates else 0.0

    def _note(self, now: float, rate: float, memory: float) -> None:
        """In silence nothing is forgotten: only what is known better takes the place of what was known."""
        while self._rates and self._rates[-1][1] <= rate:
            self._rates.pop()
        while self._rates and self._rates[0][0] < now - memory:
            self._rates.pop(0)
        self._rates.append((now, rate))
        del self._rates[:-_LOG]

    def doubt(self) -> None:
        """The path did not carry what it was thought to."""
        self._rates = [(when, _DOUBT * rate) for when, rate in self._rates]
