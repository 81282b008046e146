"""At once while the reader drains, in chunks while it lags, held when it is far behind; nothing lost on the way."""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.stream.pacer import (
    CAPACITY,
    ENTRY_BYTES,
    HIGH,
    LEAST_CHUNK,
    LEAST_WINDOW,
    LOW_LEAST,
    LOW_MOST,
    START_WINDOW,
    Brake,
    Look,
    Pacer,
    chunk_size,
)


@dataclass
class Reader:
    """The other end: a pipe that takes bytes when told, and a writer that obeys the pacer."""

    pacer: Pacer = field(default_factory=Pacer)
    rtt_s: float | None = 0.02
    now: float = 0.0
    waiting: deque[bytes] = field(default_factory=deque)
    pipe: int = 0
    chunks: list[list[bytes]] = field(default_factory=list)
    most_in_pipe: int = 0

    def write(self) -> None:
        """Everything that may go."""
        while self.waiting:
            if self.now >= self.pacer.look_at:
                self.pacer.heard(Look(self.pipe, self.rtt_s, 0.001), self.now)
            room = self.pacer.room()
            if not room:
                return
            chunk = [self.waiting.popleft()]
            while self.waiting and sum(map(len, chunk)) + len(self.waiting[0]) <= room:
                chunk.append(self.waiting.popleft())
            size = sum(map(len, chunk))
            assert len(chunk) == 1 or size <= room
            self.pacer.wrote(size, self.now)
            self.pipe += size
            self.most_in_pipe = max(self.most_in_pipe, self.pipe)
            self.chunks.append(chunk)

    def made(self, *tokens: bytes) -> None:
        self.waiting.extend(tokens)
        self.write()

    def drain(self, size: int) -> None:
        self.pipe -= min(size, self.pipe)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.write()


@pytest.mark.parametrize(
    ("rtt_ms", "jitter_ms", "size"),
    [(0, 0, 8192), (30, 5, 8192), (30, 6, 4096), (31, 0, 4096), (80, 15, 4096), (80, 16, 2048), (900, 0, 2048)],
)
def test_chunks_by_round_trip_and_jitter(rtt_ms: int, jitter_ms: int, size: int) -> None:
    assert chunk_size(rtt_ms / 1000, jitter_ms / 1000) == size


def test_datagrams_bound_a_chunk() -> None:
    pacer = Pacer(mtu=1280)
    pacer.heard(Look(0, 0.01, 0.001), 0)
    assert pacer.room() == 1280 - 64


def test_the_first_token_goes_at_once_without_knowing_anything() -> None:
    assert Pacer().room() >= LEAST_CHUNK


def test_every_token_goes_alone_while_the_reader_drains() -> None:
    reader = Reader()
    for _ in range(500):
        reader.made(b"x" * 250)
        reader.drain(250)
        reader.wait(0.02)
    assert [len(chunk) for chunk in reader.chunks] == [1] * 500
    assert not reader.pacer.lags


def test_a_long_but_fast_link_is_no_lag() -> None:
    """A satellite: a second of round trip, 5000 bytes of it in flight all the time."""
    reader, in_flight = Reader(rtt_s=1.0), deque[float]()
    for _ in range(400):
        reader.made(b"x" * 250)
        in_flight.append(reader.now + 1.0)
        while in_flight and in_flight[0] <= reader.now and reader.pipe:
            in_flight.popleft()
            reader.drain(250)
        reader.wait(0.05)
    assert [len(chunk) for chunk in reader.chunks[-200:]] == [1] * 200


def test_a_reader_that_stops_gets_chunks_when_it_goes_on() -> None:
    reader = Reader()
    for _ in range(100):
        reader.made(b"x" * 250)
        reader.wait(0.02)
    assert reader.pacer.lags
    assert reader.pipe <= START_WINDOW + 250
    written = len(reader.chunks)
    for _ in range(10):
        reader.drain(reader.pipe)
        reader.wait(0.1)
    assert not reader.waiting
    assert len(reader.chunks) - written < 30  # ninety tokens waited
    assert not reader.pacer.lags


def test_looks_are_rare_while_all_is_well_and_rarer_the_longer_nothing_moves() -> None:
    pacer = Pacer()
    pacer.heard(Look(0, 0.02, 0.001), 0.0)
    assert pacer.look_at == 0.25
    pacer.wrote(START_WINDOW, 0.1)
    assert pacer.look_at == 0.1
    waits, now = [], 0.1
    for _ in range(8):
        pacer.heard(Look(START_WINDOW, 0.02, 0.001), now)
        waits.append(pacer.look_at - now)
        now = pacer.look_at
    assert waits == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16, 0.25, 0.25, 0.25])
    assert pacer.moved == 0.1  # the caller cuts off who takes nothing for too long


def test_a_slow_link_is_given_half_a_second_of_what_it_takes() -> None:
    pacer, now = Pacer(), 0.0
    pacer.wrote(START_WINDOW, now)
    pacer.heard(Look(START_WINDOW, 0.02, 0.001), now)
    for _ in range(40):
        now += 0.25
        pacer.heard(Look(max(0, pacer.unread - 1000), 0.5, 0.001), now)  # 4000 bytes a second
        if not pacer.lags:
            while pacer.room():
                pacer.wrote(pacer.room(), now)
            pacer.heard(Look(pacer.unread, 0.5, 0.001), now)
    assert pacer.rate is not None
    assert pacer.rate == pytest.approx(4000, rel=0.3)
    assert pacer.unread <= 4000


def test_a_bad_moment_is_forgotten() -> None:
    pacer, now = Pacer(), 0.0
    pacer.wrote(START_WINDOW, now)
    for _ in range(10):
        pacer.heard(Look(START_WINDOW, 0.02, 0.001), now)
        now += 1.0
    pacer.heard(Look(START_WINDOW - 100, 0.02, 0.001), now)
    narrow = pacer.rate
    for _ in range(100):
        now += 0.25
        pacer.heard(Look(0, 0.02, 0.001), now)
    assert narrow is not None
    assert pacer.rate is not None
    assert pacer.rate > 100 * narrow


def test_delivery_delays_are_measured() -> None:
    pacer = Pacer()
    pacer.wrote(5000, 0.0)
    pacer.heard(Look(0, 0.02, 0.001), 3.0)
    assert pacer.delay_s == 0.02  # nobody looked meanwhile: it may have been read at once
    for start in (10.0, 20.0, 30.0):
        pacer.wrote(5000, start)
        for later, unread in ((1.0, 5000), (5.0, 0)):
            pacer.heard(Look(unread, 0.02, 0.001), start + later)
    assert pacer.delay_s == 5.0


def test_the_brake_holds_near_the_capacity_and_lets_go_at_the_low_watermark() -> None:
    brake = Brake(Pacer())
    high = int(HIGH * CAPACITY) // ENTRY_BYTES
    assert not brake.weigh(high - 1)
    assert brake.weigh(high + 1)
    assert brake.held
    low = int(LOW_LEAST * CAPACITY) // ENTRY_BYTES
    assert not brake.weigh(low + 1)
    assert brake.weigh(low)
    assert not brake.held


def test_who_takes_much_late_is_resumed_early() -> None:
    pacer = Pacer(capacity=10_000)
    assert pacer.low == 1000
    pacer.rate, pacer._delays = 2000.0, array("d", [1.0, 2.0, 2.0])
    assert pacer.low == 4000
    pacer.rate = 1e9
    assert pacer.low == int(LOW_MOST * 10_000) < pacer.high


@given(
    tokens=st.lists(st.integers(1, 400), min_size=1, max_size=200),
    steps=st.lists(st.tuples(st.floats(0, 0.5), st.integers(0, 3000), st.integers(0, 5)), max_size=100),
    rtt=st.one_of(st.none(), st.floats(0.0001, 3)),
)
def test_any_schedule(tokens: list[int], steps: list[tuple[float, int, int]], rtt: float | None) -> None:
    """Nothing lost, reordered or cut; the first token at once; a bounded pipe; and it always goes on."""
    made = [bytes([number % 256]) * size for number, size in enumerate(tokens)]
    reader, todo = Reader(rtt_s=rtt), deque(made)
    reader.made(todo.popleft())
    assert reader.chunks == [[made[0]]]
    for seconds, drained, count in steps:
        reader.drain(drained)
        reader.made(*[todo.popleft() for _ in range(min(count, len(todo)))])
        reader.wait(seconds)
        assert reader.pacer.unread >= reader.pipe  # never underestimated
    reader.made(*todo)
    assert reader.most_in_pipe <= CAPACITY
    for _ in range(200 + len(made)):
        reader.drain(reader.pipe)
        reader.wait(0.3)
    assert [token for chunk in reader.chunks for token in chunk] == made


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000), st.floats(0, 2)), max_size=60))
def test_whatever_a_transport_shows(looks: list[tuple[int, int, float]]) -> None:
    """Also a transport that shows more than was written: headers, other streams, TLS."""
    pacer, now = Pacer(), 0.0
    for wrote, unread, seconds in looks:
        now += seconds
        pacer.wrote(wrote, now)
        pacer.heard(Look(unread), now)
        assert pacer.unread >= 0
        assert now < pacer.look_at <= now + 0.25 + 1e-9
        assert pacer.room() == 0 or pacer.room() >= LEAST_WINDOW
        assert pacer.low < pacer.high
