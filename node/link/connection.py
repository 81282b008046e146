"""One link, without sockets: datagrams in and out, chunks in and out, one timer. Both ends are the same code.

    receive_datagram(data, address, now, came)   what is read, and when it came, where that was before
    datagrams_to_send(now)                 what must go, and where to
    timer()                                when to call `datagrams_to_send` again, at the latest
    next_event()                           what happened, until None

Both directions of a slot are a stream of numbered chunks with an end: a client's carries the request, the node's the
reply. Slots are opened by the client, from 0 on, and never used twice.

**Packets.** Each has a number of its own and is never sent again; what it carried may be. A packet that carries more
than acknowledgements asks for one, which goes at once for the first packet, for one that closes a gap and for an end,
else 20 ms after the last where at least 400 bytes came since then, and 100 ms where they did not. On a full path none
goes at once, and they wait for news, or a reply, that they can travel with: 0.25 s, or as long as 300 bytes take, at
most. Acknowledgements say which packets came (for the path's estimates) and which chunks (for the senders). What a
packet carries and when it goes is said in `sender` and `schedule`.

**Pacing.** Bytes leave at the path's rate; a packet may be early by 10 ms' worth. Where the path is too slow for what
is to be said, news wait, and travel together; packets grow to what fits 0.4 s of the path.

**Addresses.** Whoever has the key may come from a new address, and must show that it is there: see `whereabouts`.

**Bounds.** Whatever the other end says, it costs at most 3 MiB a link: `receiver.HELD` bytes out of order and
`receiver.KEPT` bytes that only serve repair, for all slots together, some 3 KiB for each slot that was ever used, and
256 packets that nobody has spoken of. Beside that an end holds of its own text what was not acknowledged (the
application watches `unacknowledged`), as chunks and once more as the shards of flights; and the events of the datagrams
that it was given since `next_event` was called last, some 200 of each. A datagram costs at most `_MENDS` attempts to
solve for what was lost. The last packet number is a CLOSE: a link must be opened anew then.

**Silence.** With a slot open, or an answer to a challenge that was not acknowledged (else the node might have no room
left to ask for it again), a client that hears nothing for a timeout (of 0.4 to 1 s) pings. After 3 s without an
answer only timeouts send, news wait. After 60 s the link is dead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import methodcaller

from node.errors import LinkError
from node.link import packet
from node.link.acknowledge import Acknowledgements
from node.link.crypto import MAX_PACKETS, Sealer
from node.link.departures import LEAST_ROOM, Departures, Stream
from node.link.events import Address, Came, Closed, Delivered, Ended, Event, Moved, Opened, Stopped
from node.link.packet import Ack, Block, Challenge, Close, Data, End, Flight, Got, Ping, Repair, Response, Stop
from node.link.path import OVERHEAD, Path
from node.link.receiver import Receiver, Store
from node.link.sender import Sender
from node.link.whereabouts import CHALLENGE_SIZE, Whereabouts

MAX_SLOTS = 256
IDLE_S = 60.0
PING_S, MOST_PING_S = 0.4, 1.0

_AT_ONCE = 64  # most packets of one call
_MENDS = 4
_RIDE_S, _RIDE_BYTES = 0.25, 300  # so long, or what that takes, an acknowledgement waits on a full path
_CARRYING = (Data, Repair, Flight)


class Connection:
    """One end of a link."""

    def __init__(
        self,
        secret: bytes,
        number: int,
        *,
        client: bool,
        address: Address,
        entropy: Callable[[int], bytes],
        now: float,
    ) -> None:
        self.number = number
        self.closed = False
        self.rejected = 0  # datagrams that were not for us, not fresh, or no packets of ours
        self.received = 0
        self.last_heard = now
        self._client = client
        self._seal = Sealer(secret, number, from_client=client)
        self._open = Sealer(secret, number, from_client=not client)
        self._next_number = 0
        self._out = Departures()
        self._streams = self._out.streams
        self._events: list[Event] = []
        self._where = Whereabouts(address, client=client, entropy=entropy)
        self._pinging = False
        self._expected: set[int] = set()  # a client's slots whose text has not come whole
        self._acks = Acknowledgements()
        self._store = Store()
        self._cramped = False  # what is due finds no room until more came from an address that is not proven
        self._as_of = -math.inf
        self._closing: Close | None = None
        self._due: tuple[float, float] | None = None  # now, and when something is due: until anything happens
        self._has_news = False  # there are news: surely due, and only the path may make them wait

    @property
    def address(self) -> Address:
        """Where the other end is."""
        return self._where.address

    @property
    def path(self) -> Path:
        """What is known of the path to the other end."""
        return self._out.path

    # What the application says.

    def open(self, slot: int, *, send_from: int = 0, receive_from: int = 0, crc: int = 0, size: int = 0) -> None:
        """Use a slot; `receive_from`, `crc` and `size` are what is known of a text that goes on."""
        if slot in self._streams or not 0 <= slot < MAX_SLOTS:
            raise ValueError(f"slot {slot} cannot be opened")
        self._due = None
        receiver = Receiver(slot, receive_from, crc, size, self._store)
        self._streams[slot] = Stream(Sender(slot, send_from, crc, size), receiver)
        if self._client:
            self._expected.add(slot)

    def send(self, slot: int, chunk: bytes, now: float) -> None:
        """Send a chunk; it leaves with the next `datagrams_to_send`."""
        stream = self._woken(slot)
        if not stream.sender.done:
            stream.sender.push(chunk)
            stream.schedule.news(now)
            self._has_news = True

    def finish(self, slot: int, now: float, meta: bytes = b"") -> None:
        """No more chunks will be sent on a slot."""
        stream = self._woken(slot)
        if stream.sender.end is None and not stream.sender.done:
            stream.sender.finish(meta)
            stream.schedule.news(now)

    def stop(self, slot: int, now: float) -> None:
        """Tell the other end that no more of this slot is wanted; it should finish it."""
        stream = self._woken(slot)
        if not stream.receiver.done:
            stream.stopping = True
            stream.schedule.news(now)

    def _woken(self, slot: int) -> Stream:
        self._due = None
        return self._out.wake(slot)

    def unacknowledged(self) -> int:
        """Bytes of all slots that have not been acknowledged, or were not even sent."""
        return self._out.unacknowledged()

    def said(self) -> int:
        """Bytes of text that were sent, or are to be, on all slots."""
        return sum(stream.sender.size for stream in self._streams.values())

    def ping(self) -> None:
        """Ask the other end for a sign of life."""
        self._pinging, self._due = True, None

    def close(self, reason: int = 0) -> None:
        """Tell the other end, once, and be closed."""
        self._closing, self._due = Close(reason), None

    def next_event(self) -> Event | None:
        """What happened, in order; None when there is nothing more."""
        return self._events.pop(0) if self._events else None

    # What comes in.

    def receive_datagram(self, data: bytes, address: Address, now: float, came: float | None = None) -> None:
        """Take a datagram; what is not authentic, not fresh or not well-formed is counted and forgotten."""
        came = now if came is None else came
        head = packet.read_head(data, self._acks.window.largest + 1)
        if head is None or head[0] != self.number or self.closed or not self._acks.window.fresh(head[1]):
            self.rejected += 1
            return
        body = self._open.open(head[1], data[: head[2]], data[head[2] :])
        if body is None:
            self.rejected += 1
            return
        if self._acks.note(head[1], came) and address != self._where.address:
            self._move(address)
        self._where.came(len(data), address)
        self.last_heard, self._due = now, None
        self.received += 1
        self._cramped = False
        try:
            self._take(packet.decode(body), len(data) + OVERHEAD, now, came)
        except LinkError:
            self.rejected += 1

    def _move(self, address: Address) -> None:
        self._where.moved(address)
        if self.received and not self._client:
            self._out.path = Path()
            self._events.append(Moved(address))

    def _take(self, blocks: Sequence[Block], size: int, now: float, came: float) -> None:
        as_of = self._as_of
        at_once = self.received == 1
        eliciting = False
        repaired: dict[int, None] = {}
        for block in blocks:
            if isinstance(block, Ack):
                self._acked(block, now, came)
            elif isinstance(block, Got):
                self._got(block, now)
            else:
                if isinstance(block, _CARRYING):
                    repaired[block.slot] = None
                eliciting = True
                at_once |= self._apply(block)
        if self._as_of > as_of:
            self._out.passed_over(self._as_of, now)
        for slot in list(repaired)[:_MENDS]:
            at_once |= self._brought(slot, lambda receiver: receiver.mend())
        if eliciting:
            self._acks.ask(now, size, at_once=at_once and not self.path.tight)

    def _apply(self, block: Block) -> bool:
        """Take one block that asks for an acknowledgement; True when that must go at once."""
        match block:
            case Data() | Repair() | Flight() | End():
                return self._brought(block.slot, methodcaller("take", block))
            case Stop(slot):
                stream = self._stream(slot)
                if stream and not stream.sender.done and stream.sender.end is None:
                    self._events.append(Stopped(slot))
            case Challenge():
                self._where.asked(block)
                return True
            case Response():
                self._where.answered(block)
            case Close(reason):
                self.closed = True
                self._events.append(Closed(reason))
        return False

    def _brought(self, slot: int, take: Callable[[Receiver], list[bytes]]) -> bool:
        """Let a slot's receiver take something; True when that must be acknowledged at once."""
        stream = self._stream(slot)
        if stream is None:
            return False
        self._acks.touch(slot)
        receiver = stream.receiver
        if receiver.done:
            return False
        number, gaps, ended = receiver.next, receiver.gaps, receiver.end is not None
        chunks = take(receiver)
        self._events.extend(Came(slot, number + i, chunk) for i, chunk in enumerate(chunks))
        if receiver.done:
            stream.stopping = False
            self._expected.discard(slot)
            self._events.append(Ended(slot, receiver.whole, receiver.end.meta if receiver.end else b""))
        return receiver.done or (receiver.end is not None) > ended or (gaps and not receiver.gaps)

    def _stream(self, slot: int) -> Stream | None:
        """The slot's stream; a node opens what its client begins to use."""
        if slot not in self._streams and not self._client:
            self.open(slot)
            self._events.append(Opened(slot))
        return self._streams.get(slot)

    def _acked(self, ack: Ack, now: float, came: float) -> None:
        if ack.largest >= self._next_number:
            return
        self._where.acknowledged(ack.largest)
        as_of = self.path.acked(ack, now, came)
        if as_of is not None:
            self._as_of = max(self._as_of, as_of)
            self._out.answered(self._as_of)

    def _got(self, block: Got, now: float) -> None:
        stream = self._streams.get(block.slot)
        if stream is None:
            return
        sender = stream.sender
        fresh = sender.fresh
        if sender.got(block, self._as_of):
            stream.schedule.progress()
        if sender.done and not stream.delivered:
            stream.delivered = True
            self._events.append(Delivered(block.slot, sender.whole))
        if not stream.active:
            stream.schedule.settled()
        elif sender.fresh and not fresh:
            stream.schedule.news(now)  # what waited for others to come may follow
        elif sender.late:
            stream.schedule.repeat(now)

    # What goes out.

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Address]]:
        """What must go now; at most 64 datagrams, the rest with the next call."""
        out: list[tuple[bytes, Address]] = []
        if self._next_number >= MAX_PACKETS - 1:
            self.close()
        while len(out) < _AT_ONCE and not self.closed and (body := self._next_body(now)) is not None:
            blocks, eliciting = body
            sealed = self._sealed(blocks)
            self._where.left(len(sealed))
            self._out.left(self._next_number - 1, len(sealed), eliciting, now)
            out.append((sealed, self._where.address))
            if self._closing is not None:
                self.closed = True
                self._events.append(Closed(self._closing.reason))
        self._cramped = not self._where.proven and not out and self._out.next_at(now) <= now
        return out

    def _sealed(self, blocks: Sequence[Block]) -> bytes:
        number = self._next_number
        self._next_number += 1
        head = packet.head(self.number, number, self.path.largest)
        body = self._where.padded(b"".join(map(packet.encode, blocks)), number, heard=self.received > 0)
        return head + self._seal.seal(number, head, body)

    def _next_body(self, now: float) -> tuple[list[Block], bool] | None:
        """The blocks of the next packet, and whether it asks for an acknowledgement; None when nothing is due."""
        room = self._where.room()
        if room < LEAST_ROOM or (not self._has_news and self._due_at(now) > now):
            return None
        self._due, self._has_news = None, False
        first: list[Block] = [*self._where.answer()]
        if self._closing is not None:
            first.append(self._closing)
        ack = self._ack_at(now) <= now
        used = CHALLENGE_SIZE + (sum(len(packet.encode(block)) for block in first) if first else 0)
        acks, size = self._acks.compose(self._streams, room - used, now)
        news = self._news(now, room - used - size)
        if not news and not ack:
            acks, news = [], self._news(now, room - used)  # they can wait and leave the whole packet to it
        if not news and not first and not ack and not self._ping_due(now):
            return None
        if not news and not first and self._ping_due(now):
            first.append(Ping())  # with an acknowledgement, too: alone it asks for nothing
        first += self._where.question()
        if self._where.owes:
            self._where.said(self._next_number)
        self._pinging = False
        if acks:
            self._acks.told(acks, now)
        return [*first, *acks, *news], bool(news or first)

    def _news(self, now: float, room: int) -> list[Block]:
        return self._out.news(now, room, flights=self._where.proven) if self._closing is None else []

    def _ping_due(self, now: float) -> bool:
        return self._pinging or self._ping_at() <= now

    def _ping_at(self) -> float:
        wait = max(PING_S, min(MOST_PING_S, self.path.pto)) if self.path.measured else PING_S
        return max(self.last_heard, self._out.last) + wait if self._expected or self._where.unsure else math.inf

    def timer(self, now: float) -> float:
        """When `datagrams_to_send` has something to do at the latest; infinity while there is nothing."""
        if self.closed or self._where.room() < LEAST_ROOM:
            return math.inf
        return min(self._ack_at(now), self._ping_at()) if self._cramped else self._due_at(now)

    def _due_at(self, now: float) -> float:
        if self._due is not None and self._due[0] == now:
            return self._due[1]
        if self._closing is not None or self._where.owes or self._pinging:
            return now
        when = self._out.next_at(now)
        if self._expected or self._where.unsure or self._acks.due < math.inf:
            when = min(when, self._ack_at(now), self._ping_at())
        self._due = now, when
        return when

    def _ack_at(self, now: float) -> float:
        """When an acknowledgement goes; on a full path it waits a little for news, or a reply, to travel with."""
        due = self._acks.due
        if not self.path.tight or due == math.inf:
            return due
        news, latest = self._out.next_at(now), due + max(_RIDE_S, _RIDE_BYTES / self.path.rate)
        if news < latest:
            return max(due, news)
        return latest if self._acks.answered_by(self._streams) else due

    def dead(self, now: float) -> bool:
        """Whether nobody was heard for so long that the link is given up."""
        return self.closed or now - self.last_heard > IDLE_S
