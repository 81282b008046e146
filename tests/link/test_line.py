"""Two ends of a line, mouth to mouth, with frames that vanish."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.errors import LinkError
from node.link import frame as frames
from node.link.events import Came, Delivered, Ended, Event, Opened, Stopped
from node.link.frame import Flag, Frame, Kind, Tlv
from node.link.line import MAX_STREAMS, Line

RATE = 960.0  # 9600 baud


class Pair:
    """A client and a node on a line that keeps order; `loses(frame)` decides about each frame."""

    def __init__(self, rate: float = RATE) -> None:
        self.client, self.node = Line(client=True, rate=rate), Line(client=False, rate=rate)
        self.now, self.rate = 0.0, rate
        self.wire: list[tuple[float, int, Line, bytes]] = []
        self.free = {self.client: 0.0, self.node: 0.0}
        self.count = itertools.count()
        self.log: dict[Line, list[Event]] = {self.client: [], self.node: []}
        self.bytes = 0

    def loses(self, data: bytes) -> bool:
        return False

    def flush(self) -> None:
        for end, other in ((self.client, self.node), (self.node, self.client)):
            for frame in end.frames_to_send(self.now):
                data = frames.encode(frame)
                self.bytes += len(data)
                self.free[end] = max(self.free[end], self.now) + len(data) / self.rate
                if not self.loses(data):
                    self.wire.append((self.free[end], next(self.count), other, data))
            while (event := end.next_event()) is not None:
                self.log[end].append(event)

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        self.flush()
        for _ in range(100_000):
            due = min([one[0] for one in self.wire] + [end.timer(self.now) for end in (self.client, self.node)])
            if due > until:
                break
            self.now = max(self.now, due) + 1e-6
            ready = sorted(one[:2] for one in self.wire if one[0] <= self.now)
            for key in ready:
                (one,) = [one for one in self.wire if one[:2] == key]
                self.wire.remove(one)
                one[2].receive(frames.decode(one[3]), self.now)
            self.flush()
        self.now = max(self.now, until)

    def text(self, end: Line, stream: int) -> bytes:
        return b"".join(e.chunk for e in self.log[end] if isinstance(e, Came) and e.slot == stream)

    def ask(self, stream: int, request: bytes = b"request") -> None:
        self.client.open(stream, self.now)
        self.client.send(stream, request, self.now)
        self.client.finish(stream, self.now)


def test_a_request_and_its_reply_at_9600_baud() -> None:
    pair = Pair()
    pair.ask(77)
    pair.run(1.0)
    assert pair.log[pair.node] == [Opened(77), Came(77, 0, b"request"), Ended(77, True)]
    words = [b"word%d " % i for i in range(40)]
    for word in words:
        pair.node.send(77, word, pair.now)
        pair.run(0.05)
    pair.node.finish(77, pair.now)
    pair.run(2.0)
    assert pair.text(pair.client, 77) == b"".join(words)
    assert pair.log[pair.client][-1] == Ended(77, True)
    assert pair.log[pair.node][-1] == Delivered(77, True)
    assert pair.node.resent == 0
    assert pair.client.timer(pair.now) == pair.node.timer(pair.now) == math.inf


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.sampled_from([0.02, 0.1, 0.3]), st.integers(1, 60))
def test_any_losses_end_in_the_exact_text(seed: int, loss: float, count: int) -> None:
    rng, pair = random.Random(seed), Pair(20_000.0)
    pair.loses = lambda data: rng.random() < loss  # type: ignore[method-assign]
    words = [rng.randbytes(rng.choice([0, 1, 6, 90])) for _ in range(count)]
    pair.ask(5, rng.randbytes(700))
    pair.run(60.0)
    for word in words:
        pair.node.send(5, word, pair.now)
        pair.run(0.02)
    pair.node.finish(5, pair.now)
    pair.run(400.0)
    assert pair.text(pair.client, 5) == b"".join(words)
    assert Ended(5, True) in pair.log[pair.client]
    assert Delivered(5, True) in pair.log[pair.node]


def test_a_lost_frame_is_sent_again_once_and_nothing_else_is() -> None:
    pair = Pair(20_000.0)
    pair.ask(5)
    pair.run(1.0)
    lost = []

    def loses(data: bytes) -> bool:
        hit = b"word7 " in data and not lost
        lost.extend([data] * hit)
        return hit

    pair.loses = loses  # type: ignore[method-assign]
    for i in range(20):
        pair.node.send(5, b"word%d " % i, pair.now)
        pair.run(0.05)
    pair.node.finish(5, pair.now)
    pair.run(2.0)
    assert pair.text(pair.client, 5) == b"".join(b"word%d " % i for i in range(20))
    assert pair.node.resent == 1


def test_streams_take_turns() -> None:
    pair = Pair()
    for stream in (1, 2, 3):
        pair.ask(stream)
    pair.run(2.0)
    for stream in (1, 2, 3):
        for i in range(10):
            pair.node.send(stream, b"%d" % i, pair.now)
    pair.run(0.6)
    sizes = [len(pair.text(pair.client, stream)) for stream in (1, 2, 3)]
    assert max(sizes) - min(sizes) <= 2
    assert sum(sizes) > 9


def test_a_stop_goes_until_it_is_heard() -> None:
    pair = Pair(20_000.0)
    pair.ask(5)
    pair.run(0.5)
    pair.node.send(5, b"one", pair.now)
    pair.run(0.3)
    deaf = [3]

    def loses(data: bytes) -> bool:
        deaf[0] -= 1
        return deaf[0] >= 0

    pair.loses = loses  # type: ignore[method-assign]
    pair.client.stop(5, pair.now)
    pair.run(20.0)
    assert Stopped(5) in pair.log[pair.node]
    pair.node.finish(5, pair.now)
    pair.run(2.0)
    assert pair.log[pair.client][-1] == Ended(5, True)


def test_the_level_of_parity_is_asked_for_in_acknowledgements() -> None:
    pair = Pair()
    pair.client.level = 2
    pair.ask(5)
    pair.run(1.0)
    pair.node.send(5, b"x", pair.now)
    pair.run(1.0)
    assert pair.node.asked_level == 2


def test_streams_are_bounded() -> None:
    node = Line(client=False, rate=RATE)
    for stream in range(MAX_STREAMS):
        node.receive(Frame(Kind.DATA, stream, 0, b"x"), 1.0)
    with pytest.raises(LinkError, match="32"):
        node.receive(Frame(Kind.DATA, 999, 0, b"x"), 2.0)
    while node.next_event():
        pass
    node.receive(Frame(Kind.DATA, 999, 0, b"x"), 500.0)
    events = list(iter(node.next_event, None))
    assert {Ended(0, False), Stopped(0)} <= set(events), "what is given up is told, so that nobody goes on with it"
    with pytest.raises(ValueError, match="cannot be opened"):
        Line(client=True, rate=RATE).open(2**32, 0.0)


@pytest.mark.parametrize(
    "frame",
    [
        Frame(Kind.DATA, 5, 0, flags=Flag.EOS),
        Frame(Kind.ACK, 5, 3, meta=(frames.missing_tlv([(1, 1)]),)),
        Frame(Kind.ACK, 5, 0, meta=(frames.missing_tlv([(5, 1), (2, 1)]),)),
        Frame(Kind.ACK, 5, 0, meta=((Tlv.MISSING, b"odd"),)),
    ],
)
def test_nonsense_is_a_link_error(frame: Frame) -> None:
    node = Line(client=False, rate=RATE)
    node.receive(Frame(Kind.DATA, 5, 0, b"x"), 0.0)
    with pytest.raises(LinkError):
        node.receive(frame, 0.1)


def test_a_text_that_is_called_wrong_before_it_was_sent_leaves_nothing_to_do() -> None:
    node = Line(client=False, rate=RATE)
    node.receive(Frame(Kind.DATA, 5, 0, b"x"), 0.0)
    node.send(5, b"word", 0.0)
    node.receive(Frame(Kind.ACK, 5, 0, flags=Flag.INTERRUPT), 0.0)
    node.finish(5, 0.0)
    node.frames_to_send(0.0)
    assert node.frames_to_send(10.0) == []
    assert node.timer(10.0) == math.inf
    assert node.unacknowledged() == 0


@given(
    st.lists(
        st.builds(
            Frame,
            kind=st.sampled_from(Kind),
            stream=st.integers(0, 3),
            seq=st.integers(0, 2**32 - 1),
            payload=st.binary(max_size=20),
            flags=st.sampled_from([Flag(0), Flag.EOS, Flag.INTERRUPT]),
            meta=st.lists(st.tuples(st.integers(0, 6), st.binary(max_size=24)), max_size=2).map(tuple),
        ),
        max_size=30,
    )
)
def test_any_frames_at_all_break_nothing(row: list[Frame]) -> None:
    node = Line(client=False, rate=RATE)
    for i, frame in enumerate(row):
        try:
            node.receive(frame, i * 0.1)
        except LinkError:
            continue
        node.send(1, b"word", i * 0.1)
        node.frames_to_send(i * 0.1)
        while node.next_event():
            pass
