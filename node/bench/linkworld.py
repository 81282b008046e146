"""Replies over a lossy path on a virtual clock: the node's own link, and what others do instead.

    link              `link.connection`, both ends, as in the node
    eloquent, parity  what others do, as `rivals` says
    floor             everything unacknowledged again every 2 ms: no scheme can be faster, none could be dearer

All see the same weather: a path's bad moments are the same for each of them.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from node.bench.channel import Channel, Conditions, Weather
from node.bench.rivals import EloquentListener, EloquentTalker, Listener, Talker, XorListener, XorTalker
from node.link.connection import Connection
from node.link.events import Came, Ended

SECRET = bytes(32)
WARM_UP = 60  # tokens of a first reply that is not counted: estimates are kept across replies
_PAUSE_S = 0.5
_RIVAL_HEADER = 28 + 4  # IP, UDP, and which reply it is
_FLOOR_S = 0.002
_MOST_STEPS = 5_000_000


@dataclass(slots=True)
class Reply:
    """When each chunk was made and when it came, in order; `whole` when the text was the one that was sent."""

    made: list[float] = field(default_factory=list)
    came: list[float] = field(default_factory=list)
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What some replies were like. `bytes` are those of both directions, headers included, per chunk."""

    replies: tuple[Reply, ...]
    bytes: float
    delay: float  # one way, in seconds


@dataclass(frozen=True, slots=True)
class Talk:
    """What is said: so many replies of so many chunks of `size` bytes, `rate` chunks a second."""

    rate: float
    replies: int = 10
    chunks: int = 200
    size: int = 5


class Clock:
    """Things that happen at their times."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, do: Callable[[float], None]) -> None:
        heapq.heappush(self._heap, (when, next(self._order), do))

    def run(self, until: float, done: Callable[[], bool]) -> float:
        """Let things happen until nothing is left, it is done, or it is too late; gives the time."""
        now = 0.0
        for _ in range(_MOST_STEPS):
            if not self._heap or done() or self._heap[0][0] > until:
                break
            now, _, do = heapq.heappop(self._heap)
            do(now)
        return now


def _path(conditions: Conditions, seed: int) -> tuple[Channel, Channel]:
    """Up and down; the weather has a generator of its own, so that it is the same whoever asks how often."""
    weather = Weather(conditions, random.Random(seed))
    return Channel(conditions, weather, random.Random(seed + 1)), Channel(conditions, weather, random.Random(seed + 2))


def _limit(talk: Talk) -> float:
    return (talk.replies + 1) * (talk.chunks / talk.rate + _PAUSE_S) + 300.0


class _LinkRun:
    """One run over the node's own link."""

    def __init__(self, conditions: Conditions, talk: Talk, seed: int) -> None:
        self.talk, self.clock = talk, Clock()
        self.up, self.down = _path(conditions, seed)
        entropy = random.Random(seed + 3).randbytes
        self.client = Connection(SECRET, 1, client=True, address="node", entropy=entropy, now=0.0)
        self.node = Connection(SECRET, 1, client=False, address=None, entropy=entropy, now=0.0)
        self.replies: dict[int, Reply] = {}
        self._armed = {self.client: -1.0, self.node: -1.0}
        self.counted = 0

    def ask(self, slot: int, now: float) -> None:
        if slot == 1:
            self.counted = self.up.bytes + self.down.bytes
        self.replies[slot] = Reply()
        self.client.open(slot)
        self.client.send(slot, b"{}", now)
        self.client.finish(slot, now)
        self.pump(now)

    def say(self, slot: int, number: int, count: int, now: float) -> None:
        self.replies[slot].made.append(now)
        self.node.send(slot, b"%0*d" % (self.talk.size, number % 10**self.talk.size), now)
        if number + 1 == count:
            self.node.finish(slot, now)
        self.pump(now)

    def pump(self, now: float) -> None:
        for end, channel, other in ((self.client, self.up, self.node), (self.node, self.down, self.client)):
            self._events(end, now)
            for data, _ in end.datagrams_to_send(now):
                for when, copy in channel.carry(data, now):
                    self.clock.at(when, partial(self._arrive, other, copy))
            when = max(end.timer(now), now + 1e-6)
            if when < math.inf and not now < self._armed[end] <= when:
                self._armed[end] = when
                self.clock.at(when, self.pump)

    def _arrive(self, end: Connection, data: bytes, now: float) -> None:
        end.receive_datagram(data, "client" if end is self.node else "node", now)
        self.pump(now)

    def _events(self, end: Connection, now: float) -> None:
        while (event := end.next_event()) is not None:
            if end is self.client and isinstance(event, Came):
                self.replies[event.slot].came.append(now)
            elif isinstance(event, Ended) and end is self.client:
                self.replies[event.slot].whole = event.whole
                if event.slot < self.talk.replies:
                    self.clock.at(now + _PAUSE_S, partial(self.ask, event.slot + 1))
            elif isinstance(event, Ended):
                self._answer(event.slot, now)

    def _answer(self, slot: int, now: float) -> None:
        count = self.talk.chunks if slot else WARM_UP
        for number in range(count):
            self.clock.at(now + (number + 1) / self.talk.rate, partial(self.say, slot, number, count))


def link(conditions: Conditions, talk: Talk, seed: int) -> Outcome:
    """Replies over the node's own link, one after the other on one connection."""
    run = _LinkRun(conditions, talk, seed)
    run.clock.at(0.0, partial(run.ask, 0))
    last = talk.replies
    run.clock.run(_limit(talk), lambda: last in run.replies and run.replies[last].whole)
    replies = [run.replies[slot] for slot in sorted(run.replies) if slot]
    size = run.up.bytes + run.down.bytes - run.counted
    return Outcome(tuple(replies), size / (talk.chunks * talk.replies), conditions.rtt / 2)


def eloquent(conditions: Conditions, talk: Talk, seed: int) -> Outcome:
    """All unacknowledged chunks in every packet, as far as 1,150 bytes go."""
    return _rival(EloquentTalker, EloquentListener, conditions, talk, seed)


def eloquent_pto(conditions: Conditions, talk: Talk, seed: int) -> Outcome:
    """Eloquent with the link's timeout in place of its own."""
    return _rival(partial(EloquentTalker, None), EloquentListener, conditions, talk, seed)


def parity(conditions: Conditions, talk: Talk, seed: int) -> Outcome:
    """One parity packet for three."""
    return _rival(XorTalker, XorListener, conditions, talk, seed)


def _rival(
    talker: Callable[[], Talker], listener: Callable[[], Listener], conditions: Conditions, talk: Talk, seed: int
) -> Outcome:
    run = _RivalRun(conditions, seed)
    start = 0.0
    for _ in range(talk.replies):
        start = run.reply(talker(), listener(), talk, start)
    size = run.up.bytes + run.down.bytes
    return Outcome(tuple(run.replies), size / (talk.chunks * talk.replies), conditions.rtt / 2)


class _RivalRun:
    """One run of somebody else's scheme."""

    def __init__(self, conditions: Conditions, seed: int) -> None:
        self.up, self.down = _path(conditions, seed)
        self.replies: list[Reply] = []

    def reply(self, talker: Talker, listener: Listener, talk: Talk, start: float) -> float:
        """Let one reply happen; gives when the next may begin."""
        clock, reply = Clock(), Reply()
        self.replies.append(reply)
        armed = math.inf

        def put(packets: list[bytes], now: float) -> None:
            nonlocal armed
            for packet in packets:
                for when, copy in self.down.carry(packet, now, _RIVAL_HEADER):
                    clock.at(when, partial(arrive, copy))
            when = talker.timer()
            if when < math.inf and when != armed:
                armed = when
                clock.at(max(now, when), lambda now: put(talker.expire(now), now))

        def arrive(packet: bytes, now: float) -> None:
            chunks, answers = listener.receive(packet)
            reply.came += [now] * len(chunks)
            for answer in answers:
                for when, copy in self.up.carry(answer, now, _RIVAL_HEADER):
                    clock.at(when, lambda now, copy=copy: put(talker.receive(copy, now), now))  # type: ignore[misc]

        def make(now: float) -> None:
            reply.made.append(now)
            put(talker.push(bytes(talk.size), now), now)

        for number in range(talk.chunks):
            clock.at(start + (number + 1) / talk.rate, make)
        end = clock.run(start + _limit(talk), lambda: len(reply.came) == talk.chunks and talker.idle())
        reply.whole = len(reply.came) == talk.chunks
        return end + _PAUSE_S


def floor(conditions: Conditions, talk: Talk, seed: int) -> Outcome:
    """Each chunk comes with the first packet that the weather lets through, of one every 2 ms."""
    weather = Weather(conditions, random.Random(seed))
    replies, now = [], 0.0
    for _ in range(talk.replies):
        reply = Reply(whole=True)
        begin = now
        while len(reply.came) < talk.chunks:
            made = min(talk.chunks, int((now - begin) * talk.rate + 1e-9))
            reply.made += [begin + (number + 1) / talk.rate for number in range(len(reply.made), made)]
            if made > len(reply.came) and not weather.loses(now):
                reply.came += [now + conditions.rtt / 2] * (made - len(reply.came))
            now += _FLOOR_S
        replies.append(reply)
        now += _PAUSE_S
    return Outcome(tuple(replies), math.nan, conditions.rtt / 2)
