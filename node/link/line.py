"""One end of a serial line or a radio, without the device: frames in and out, chunks in and out.

A line keeps order, so a frame that did not come before a later one is lost, and nothing is sent twice before that is
known: at 960 bytes a second a copy would cost more than it saves. Each direction of a stream is numbered chunks with an
end, as on a UDP link (`connection`); streams are named by 32-bit numbers that the client picks.

- DATA carries one chunk; the end is a DATA frame with EOS and TOTALS.
- ACK goes 0.1 s after the last, or at once for a gap that appears or closes and for an end. `seq` is the next chunk
  wanted; MISSING names what is missing of what is known; a range of count 0 closes the list where knowledge ends. EOS
  says that the whole text was found right, INTERRUPT that it was wrong. On radio, QUALITY asks for a level of
  parity, 0 to 2.
- CTRL with INTERRUPT: no more of this stream is wanted; repeated until its end comes.
- What stays unanswered for a timeout is sent again: srtt + 4 rttvar + 0.2 s, doubled up to 8 s.

One end holds of the other's text at most `receiver.HELD` bytes out of order for all of at most 32 streams, and its own
text until it is acknowledged. A stream that was not heard for 120 s makes room for another.

Frames leave at the line's rate, so that an acknowledgement or a stop never waits behind more than one of them.
"""

from __future__ import annotations

import math
from collections import deque

from node.errors import LinkError
from node.link import frame as frames
from node.link.events import Came, Delivered, Ended, Event, Opened, Stopped
from node.link.frame import Flag, Frame, Kind, Tlv
from node.link.packet import Data, End, Got
from node.link.receiver import Receiver, Store
from node.link.sender import Sender

MAX_STREAMS = 32
ACK_S = 0.1
IDLE_S = 120.0  # a stream of which nothing was heard for so long is given up
_SLACK_S, _MAX_TIMEOUT_S = 0.2, 8.0
_FRAME = 24  # bytes of a frame beside its payload, coding included, roughly


class _Stream:
    __slots__ = ("ack_at", "acked_at", "delivered", "heard", "receiver", "sender", "sent_at", "stopping", "timeouts")

    def __init__(self, now: float, store: Store) -> None:
        self.sender = Sender(0)
        self.receiver = Receiver(0, store=store)
        self.ack_at = math.inf
        self.acked_at = -math.inf
        self.sent_at = now
        self.heard = now
        self.timeouts = 0
        self.stopping = False
        self.delivered = False


class Line:
    """One end. `rate` is in bytes a second."""

    def __init__(self, *, client: bool, rate: float) -> None:
        self.closed = False
        self.srtt, self.rttvar = 0.3, 0.15
        self.level: int | None = None  # of parity that this end asks for; None on a wire
        self.asked_level: int | None = None  # that the other end asks for
        self.resent = 0
        self._client = client
        self._rate = rate
        self._free_at = -math.inf
        self._streams: dict[int, _Stream] = {}
        self._store = Store()
        self._events: deque[Event] = deque()

    @property
    def path(self) -> Line:
        """Its own estimates of the round trip."""
        return self

    def open(self, stream: int, now: float) -> None:
        """Begin a stream; a client's first word."""
        if stream in self._streams or not 0 <= stream < 2**32:
            raise ValueError(f"stream {stream} cannot be opened")
        self._streams[stream] = _Stream(now, self._store)

    def send(self, stream: int, chunk: bytes, now: float) -> None:
        """Send a chunk of at most `sender.MAX_CHUNK` bytes."""
        if (found := self._streams.get(stream)) and not found.sender.done:
            found.sender.push(chunk)

    def finish(self, stream: int, now: float) -> None:
        """No more chunks will be sent on a stream."""
        if (found := self._streams.get(stream)) and found.sender.end is None:
            found.sender.finish()

    def stop(self, stream: int, now: float) -> None:
        """Tell the other end that no more of this stream is wanted."""
        if (found := self._streams.get(stream)) and not found.receiver.done:
            found.stopping = True
            found.sent_at = -math.inf

    def forget(self, stream: int) -> None:
        """Nobody asks about it any more."""
        if found := self._streams.pop(stream, None):
            found.receiver.close()

    def unacknowledged(self) -> int:
        """Bytes that were not acknowledged, or not even sent."""
        return sum(stream.sender.unacknowledged for stream in self._streams.values())

    def close(self) -> None:
        """The device is gone."""
        self.closed = True

    def next_event(self) -> Event | None:
        """What happened, in order; None when there is nothing more."""
        return self._events.popleft() if self._events else None

    # What comes in.

    def receive(self, frame: Frame, now: float) -> None:
        """Take a frame; raises LinkError for one that makes no sense."""
        stream = self._streams.get(frame.stream)
        if stream is None:
            if self._client or frame.kind is not Kind.DATA or frame.stream >= 2**32:
                return
            self._make_room(now)
            stream = self._streams[frame.stream] = _Stream(now, self._store)
            self._events.append(Opened(frame.stream))
        stream.heard = now
        if frame.kind is Kind.DATA:
            self._data(frame, stream, now)
        elif frame.kind is Kind.ACK:
            self._acked(frame, stream, now)
        elif frame.kind is Kind.CTRL and frame.flags & Flag.INTERRUPT and stream.sender.end is None:
            self._events.append(Stopped(frame.stream))

    def _make_room(self, now: float) -> None:
        over = [n for n, s in self._streams.items() if (s.receiver.done and s.sender.done) or now - s.heard > IDLE_S]
        for number in over[: max(0, len(self._streams) - MAX_STREAMS // 2)] or over:
            self._give_up(number, self._streams[number])
            self.forget(number)
        if len(self._streams) >= MAX_STREAMS:
            raise LinkError(f"This line carries {MAX_STREAMS} streams already.")

    def _give_up(self, number: int, stream: _Stream) -> None:
        """Tell the application of what will not come, or is not wanted."""
        if not stream.receiver.done:
            self._events.append(Ended(number, False))
        if not stream.sender.done:
            self._events.append(Stopped(number))

    def _data(self, frame: Frame, stream: _Stream, now: float) -> None:
        receiver = stream.receiver
        due = max(now, stream.acked_at + ACK_S)
        if not receiver.done:
            number, gaps = receiver.next, receiver.gaps
            if frame.flags & Flag.EOS:
                totals = frames.totals(frame)
                if totals is None:
                    raise LinkError("An end must say what the whole text is.")
                chunks = receiver.ended(End(0, totals.entries, totals.size, totals.crc))
            else:
                chunks = receiver.data(Data(0, frame.seq & 0xFFFF, [frame.payload]))
            self._events.extend(Came(frame.stream, number + i, chunk) for i, chunk in enumerate(chunks))
            if receiver.done:
                stream.stopping = False
                self._events.append(Ended(frame.stream, receiver.whole))
            if gaps != receiver.gaps or receiver.done:
                due = now
        else:
            due = now
        stream.ack_at = min(stream.ack_at, due)

    def _acked(self, frame: Frame, stream: _Stream, now: float) -> None:
        sender = stream.sender
        level = frame.first(Tlv.QUALITY)
        self.asked_level = level[0] if level and level[0] <= 2 else self.asked_level
        block, newest = _got(frame, frames.missing(frame))
        sent = sender.sent_at(newest)
        if sent is not None and newest not in sender.repeated:
            self._observe(now - sent)
        # What was sent before something that has come, and has not come itself, is lost: a line keeps order.
        if sender.got(block, -math.inf if sent is None else sent):
            stream.timeouts = 0
        if sender.done and not stream.delivered:
            stream.delivered = True
            self._events.append(Delivered(frame.stream, sender.whole))

    def _observe(self, rtt: float) -> None:
        self.rttvar += (abs(self.srtt - rtt) - self.rttvar) / 4
        self.srtt += (rtt - self.srtt) / 8

    # What goes out.

    def frames_to_send(self, now: float) -> list[Frame]:
        """The frames that may leave now: what the line carries in a moment, acknowledgements first."""
        out: list[Frame] = []
        while not self.closed and now >= self._free_at and (frame := self._next(now)) is not None:
            size = len(frame.payload) + _FRAME + sum(2 + len(value) for _, value in frame.meta)
            self._free_at = max(self._free_at, now) + size / self._rate
            out.append(frame)
        return out

    def _next(self, now: float) -> Frame | None:
        for number, stream in self._streams.items():
            if stream.ack_at <= now:
                stream.ack_at, stream.acked_at = math.inf, now
                return self._ack(number, stream.receiver)
        for number, stream in list(self._streams.items()):
            if frame := self._say(number, stream, now):
                # Taking turns: the one that spoke goes to the end.
                self._streams[number] = self._streams.pop(number)
                return frame
        return None

    def _say(self, number: int, stream: _Stream, now: float) -> Frame | None:
        sender = stream.sender
        late = now >= stream.sent_at + self._timeout(stream)
        if stream.stopping and late:
            stream.sent_at = now
            stream.timeouts += 1
            return Frame(Kind.CTRL, number, 0, flags=Flag.INTERRUPT)
        if sender.done:
            return None
        if sender.late or sender.fresh or (late and sender.waiting):
            again = not sender.fresh and not sender.late
            chunk = sender.next_alone(now, anew=again)
            if chunk is not None:
                self.resent += chunk[0] in sender.repeated
                stream.sent_at = now
                stream.timeouts += again
                return Frame(Kind.DATA, number, chunk[0], chunk[1])
        if sender.end is not None and not sender.fresh and (late or sender.end_unsent):
            sender.end_unsent = False
            stream.sent_at = now
            stream.timeouts += 1
            end = sender.end
            totals = frames.Totals(end.chunks, end.size, end.crc)
            return Frame(Kind.DATA, number, end.chunks, flags=Flag.EOS, meta=(totals.encode(),))
        return None

    def _timeout(self, stream: _Stream) -> float:
        wait = self.srtt + 4 * self.rttvar + _SLACK_S + _FRAME / self._rate
        return min(_MAX_TIMEOUT_S, wait * 2.0 ** min(stream.timeouts, 6))

    def _ack(self, number: int, receiver: Receiver) -> Frame:
        got = receiver.got()
        missing, at = [], got.next
        for absent, come in got.ranges:
            missing.append((at, absent))
            at += absent + come
        meta = [frames.missing_tlv([*missing, (at, 0)])] if missing else []
        if self.level is not None:
            meta.append((Tlv.QUALITY, bytes((self.level,))))
        flags = Flag.EOS * got.whole | Flag.INTERRUPT * got.wrong
        return Frame(Kind.ACK, number, got.next, flags=Flag(flags), meta=tuple(meta))

    def timer(self, now: float) -> float:
        """When `frames_to_send` has something to do at the latest; infinity while there is nothing."""
        due = math.inf
        for stream in self._streams.values():
            sender = stream.sender
            due = min(due, stream.ack_at)
            if sender.done and not stream.stopping:
                continue
            if sender.fresh or sender.late or (sender.end is not None and sender.end_unsent):
                due = min(due, now)
            elif sender.waiting or stream.stopping:
                due = min(due, stream.sent_at + self._timeout(stream))
        return max(due, self._free_at)


def _got(frame: Frame, missing: list[tuple[int, int]]) -> tuple[Got, int]:
    """An ACK frame as a block, and the newest chunk that it says has come."""
    ranges: list[tuple[int, int]] = []
    at, newest = frame.seq, frame.seq - 1
    for first, count in missing:
        if first < at or (not ranges and first != frame.seq):
            raise LinkError("The missing ranges of an acknowledgement are not in order.")
        if first > at:
            ranges[-1] = (ranges[-1][0], first - at)
            newest = first - 1
        if count:
            ranges.append((count, 0))
        at = first + count
    whole, wrong = bool(frame.flags & Flag.EOS), bool(frame.flags & Flag.INTERRUPT)
    return Got(0, frame.seq, ranges, whole, wrong), newest
