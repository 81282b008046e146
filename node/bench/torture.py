"""Row 8 of the bar: replies over paths that lose, repeat, replay, reorder, bend and cut, and whose text must be exact.

On a virtual clock, with the node's own `link.connection` at both ends. A session has a path with bad habits of its own
and asks for some replies at a time. In a cut both ends lose all they knew of the link; the replies go on over a fresh
one, from the next chunk. Old datagrams are replayed at any time, those of the link before a cut, too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from node.bench.channel import Channel, Conditions, Weather
from node.bench.linkworld import Clock
from node.link.connection import Connection
from node.link.events import Came, Ended, Opened
from node.link.frame import crc32

AT_ONCE = 4
REPLIES = 50  # of a session
_PATIENCE_S = 600.0
_REPLAYED = 0.02
_KEPT = 64  # old datagrams that may be replayed
_SIZES = (0, 1, 3, 5, 5, 8, 8, 12, 40, 300)
_GAPS_S = (0.0, 0.0, 0.005, 0.02)


@dataclass(slots=True)
class Tally:
    """What came of it. `wrong` are replies with a wrong byte, `unfinished` those that never came whole."""

    replies: int = 0
    wrong: int = 0
    unfinished: int = 0
    chunks: int = 0
    cuts: int = 0
    datagrams: int = 0
    rejected: int = 0
    seconds: float = 0.0  # of virtual time

    def add(self, other: Tally) -> None:
        """Count another session, too."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class _Reply:
    """A reply, and how far it got: what the node has said, what the reader has."""

    chunks: list[bytes]
    gap: float
    said: int = 0
    came: int = 0
    text: bytearray = field(default_factory=bytearray)
    done: bool = False
    wrong: bool = False


def habits(rng: random.Random, loss: float | None = None) -> Conditions:
    """A path as bad as chance makes it, or of a given loss."""
    return Conditions(
        rtt=rng.choice((0.02, 0.15, 0.6)),
        loss=rng.choice((0.0, 0.05, 0.2, 0.4)) if loss is None else loss,
        burst_s=rng.choice((0.0, 0.0, 0.06)),
        jitter=rng.choice((0.0, 0.03)),
        rate=rng.choice((math.inf, math.inf, 4000.0)),
        duplicate=0.05,
        corrupt=0.05,
        reorder=0.1,
    )


class Session:
    """Some replies over one path."""

    def __init__(self, seed: int, *, replies: int = REPLIES, loss: float | None = None) -> None:
        self._rng = random.Random(seed)
        self.conditions = habits(self._rng, loss)
        weather = Weather(self.conditions, random.Random(seed + 1))
        self._channels = {client: Channel(self.conditions, weather, self._rng) for client in (True, False)}
        self._clock = Clock()
        self.tally = Tally(replies=replies)
        self.replies = [self._made() for _ in range(replies)]
        self._number = 0
        self._kept: list[bytes] = []
        self._begin(0.0)

    def _made(self) -> _Reply:
        count = self._rng.choice((0, 1, 5, 10, 40))
        chunks = [self._rng.randbytes(self._rng.choice(_SIZES)) for _ in range(count)]
        return _Reply(chunks, self._rng.choice(_GAPS_S))

    def _begin(self, now: float) -> None:
        """A fresh link; what was begun goes on where its reader is."""
        self._number += 1
        secret = self._rng.randbytes(32)
        ends = {True: "node", False: None}
        self._ends = {
            client: Connection(
                secret, self._number, client=client, address=address, entropy=self._rng.randbytes, now=now
            )
            for client, address in ends.items()
        }
        self._slots: dict[int, _Reply] = {}
        self._armed: dict[bool, float] = {}

    def run(self) -> Tally:
        """All of it."""
        for cut in range(self._rng.choice((0, 0, 1, 2))):
            self._clock.at(0.5 + self._rng.random() + cut, self._cut)
        self._clock.at(0.0, self._ask)
        self.tally.seconds = self._clock.run(_PATIENCE_S, lambda: all(reply.done for reply in self.replies))
        self.tally.wrong = sum(reply.wrong for reply in self.replies)
        self.tally.unfinished = sum(not reply.done for reply in self.replies)
        self.tally.rejected += sum(end.rejected for end in self._ends.values())
        return self.tally

    def _cut(self, now: float) -> None:
        self.tally.cuts += 1
        self.tally.rejected += sum(end.rejected for end in self._ends.values())
        self._begin(now)
        self._ask(now)

    def _ask(self, now: float) -> None:
        client = self._ends[True]
        waiting = [reply for reply in self.replies if not reply.done and reply not in self._slots.values()]
        running = sum(not reply.done for reply in self._slots.values())
        for reply in waiting[: AT_ONCE - running]:
            slot = len(self._slots)
            self._slots[slot] = reply
            known = {"crc": crc32(bytes(reply.text)), "size": len(reply.text)}
            client.open(slot, receive_from=reply.came, **known)
            self._ends[False].open(slot, send_from=reply.came, **known)
            reply.said = reply.came
            client.send(slot, b"?", now)
            client.finish(slot, now)
        self._pump(True, now)

    def _say(self, number: int, slot: int, now: float) -> None:
        """The next chunk of a reply, as long as it is asked for on this link."""
        if number != self._number:
            return
        reply, node = self._slots[slot], self._ends[False]
        due = len(reply.chunks) if not reply.gap else min(len(reply.chunks), reply.said + 1)
        for chunk in reply.chunks[reply.said : due]:
            node.send(slot, chunk, now)
        reply.said = due
        if due == len(reply.chunks):
            node.finish(slot, now)
        else:
            self._clock.at(now + reply.gap, partial(self._say, number, slot))
        self._pump(False, now)

    def _pump(self, client: bool, now: float) -> None:
        """Let one end say what it has to."""
        end = self._ends[client]
        self._events(client, end, now)
        for data, _ in end.datagrams_to_send(now):
            self._put(client, data, now)
        when = max(end.timer(now), now + 1e-6)
        if when < math.inf and not now < self._armed.get(client, -1.0) <= when:
            self._armed[client] = when
            self._clock.at(when, partial(self._pump, client))

    def _put(self, client: bool, data: bytes, now: float) -> None:
        self.tally.datagrams += 1
        sent = [data]
        if self._rng.random() < _REPLAYED and self._kept:
            sent.append(self._rng.choice(self._kept))
        if len(self._kept) < _KEPT or self._rng.random() < 0.1:
            self._kept = [*self._kept[-_KEPT + 1 :], data]
        for one in sent:
            for when, copy in self._channels[client].carry(one, now):
                self._clock.at(when, partial(self._arrive, not client, copy))

    def _arrive(self, client: bool, data: bytes, now: float) -> None:
        self._ends[client].receive_datagram(data, "node" if client else "client", now)
        self._pump(client, now)

    def _events(self, client: bool, end: Connection, now: float) -> None:
        asked = False
        while (event := end.next_event()) is not None:
            if not client and isinstance(event, Ended):
                self._clock.at(now, partial(self._say, self._number, event.slot))
            elif not client and isinstance(event, Opened):
                raise AssertionError("a slot was made from a datagram that nobody sent")
            elif client and isinstance(event, Came):
                self._came(self._slots[event.slot], event)
            elif client and isinstance(event, Ended):
                reply = self._slots[event.slot]
                reply.done = True
                reply.wrong |= not event.whole or bytes(reply.text) != b"".join(reply.chunks)
                asked = True
        if asked:
            self._clock.at(now, self._ask)

    def _came(self, reply: _Reply, event: Came) -> None:
        right = event.number == reply.came < len(reply.chunks) and event.chunk == reply.chunks[reply.came]
        reply.wrong |= not right
        reply.came += 1
        reply.text += event.chunk
        self.tally.chunks += 1


def run(replies: int, seed: int, step: Callable[[Tally], None] = lambda tally: None) -> Tally:
    """So many replies, in sessions; `step` hears of each."""
    total = Tally()
    for session in range(math.ceil(replies / REPLIES)):
        total.add(Session(seed * 1_000_003 + session).run())
        step(total)
    return total
