"""Two ends wired mouth to mouth, without sockets."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from node.link import packet
from node.link.connection import Connection
from node.link.crypto import Sealer
from node.link.events import Came, Closed, Delivered, Ended, Event, Moved, Opened, Stopped

SECRET = bytes(range(32))


class Pair:
    """A client, a node, and a virtual clock; `drop(data, number)` decides about each datagram."""

    def __init__(self, delay: float = 0.02) -> None:
        entropy = random.Random(1).randbytes
        self.client = Connection(SECRET, 7, client=True, address="node", entropy=entropy, now=0.0)
        self.node = Connection(SECRET, 7, client=False, address=None, entropy=entropy, now=0.0)
        self.now, self.delay = 0.0, delay
        self.wire: list[tuple[float, int, Connection, bytes, str]] = []
        self.count = itertools.count()
        self.client_address = "client"
        self.log: dict[Connection, list[Event]] = {self.client: [], self.node: []}
        self.sent: dict[Connection, int] = {self.client: 0, self.node: 0}

    def drop(self, data: bytes, number: int) -> bool:
        return False

    def mangle(self, data: bytes) -> list[bytes]:
        return [data]

    def flush(self) -> None:
        for end, other in ((self.client, self.node), (self.node, self.client)):
            for data, address in end.datagrams_to_send(self.now):
                self.sent[end] += len(data)
                origin = self.client_address if end is self.client else "node"
                if end is self.node and address != self.client_address:
                    continue  # nobody is there any more
                if not self.drop(data, next(self.count)):
                    for copy in self.mangle(data):
                        self.wire.append((self.now + self.delay, next(self.count), other, copy, origin))
            while (event := end.next_event()) is not None:
                self.log[end].append(event)

    def run(self, seconds: float) -> None:
        """Let time pass until nothing is due or the seconds are over."""
        until = self.now + seconds
        self.flush()
        for _ in range(200_000):
            due = min([one[0] for one in self.wire] + [end.timer(self.now) for end in (self.client, self.node)])
            if due > until:
                break
            self.now = max(self.now, due) + 1e-6
            ready = [one for one in self.wire if one[0] <= self.now]
            self.wire = [one for one in self.wire if one[0] > self.now]
            for _, _, end, data, origin in sorted(ready, key=lambda one: one[:2]):
                end.receive_datagram(data, origin, self.now)
            self.flush()
        self.now = max(self.now, until)

    def text(self, end: Connection, slot: int = 0) -> bytes:
        return b"".join(event.chunk for event in self.log[end] if isinstance(event, Came) and event.slot == slot)

    def ask(self, slot: int = 0, request: bytes = b"request") -> None:
        self.client.open(slot)
        self.client.send(slot, request, self.now)
        self.client.finish(slot, self.now, b"q")

    def answer(self, words: list[bytes], slot: int = 0, gap: float = 0.02) -> None:
        for word in words:
            self.node.send(slot, word, self.now)
            self.run(gap)
        self.node.finish(slot, self.now, b"done")


WORDS = [b"word%d " % i for i in range(60)]


def test_a_request_and_its_reply() -> None:
    pair = Pair()
    pair.ask()
    pair.run(0.1)
    assert pair.log[pair.node] == [Opened(0), Came(0, 0, b"request"), Ended(0, True, b"q")]
    pair.answer(WORDS)
    pair.run(1.0)
    assert pair.text(pair.client) == b"".join(WORDS)
    assert [event for event in pair.log[pair.client] if not isinstance(event, Came)] == [
        Delivered(0, True),
        Ended(0, True, b"done"),
    ]
    assert pair.log[pair.node][-1] == Delivered(0, True)
    assert pair.client.timer(pair.now) == pair.node.timer(pair.now) == math.inf, "nothing is left to do"


@settings(max_examples=40)
@example(seed=120, loss=0.5, count=7)  # the node had no room left to ask for a proof that was lost
@given(st.integers(0, 2**32), st.sampled_from([0.05, 0.2, 0.5]), st.integers(1, 120))
def test_any_weather_ends_in_the_exact_text(seed: int, loss: float, count: int) -> None:
    """Loss, reordering, duplicates and flipped bits on every datagram of both directions."""
    rng, pair = random.Random(seed), Pair()
    words = [rng.randbytes(rng.choice([0, 1, 5, 40, 300])) for _ in range(count)]

    def mangle(data: bytes) -> list[bytes]:
        pair.delay = 0.01 + 0.03 * rng.random()
        copies = [data] * rng.choice([1, 1, 1, 2, 3])
        if rng.random() < 0.1:
            place = rng.randrange(len(data))
            copies.append(data[:place] + bytes((data[place] ^ 1 << rng.randrange(8),)) + data[place + 1 :])
        return copies

    pair.drop = lambda data, number: rng.random() < loss  # type: ignore[method-assign]
    pair.mangle = mangle  # type: ignore[method-assign]
    pair.ask(request=rng.randbytes(900))
    while not any(isinstance(event, Ended) for event in pair.log[pair.node]):
        assert pair.now < 60.0
        pair.run(0.5)
    pair.answer(words, gap=0.01)
    pair.run(60.0)
    assert pair.text(pair.client) == b"".join(words)
    assert Ended(0, True, b"done") in pair.log[pair.client]
    assert Delivered(0, True) in pair.log[pair.node]


def test_a_backlog_goes_as_a_flight_and_survives_losses() -> None:
    pair = Pair()
    pair.ask()
    pair.run(0.5)
    pair.drop = lambda data, number: number % 9 == 0  # type: ignore[method-assign]
    words = [b"x" * 60 + b"%04d" % i for i in range(400)]
    for word in words:
        pair.node.send(0, word, pair.now)
    pair.node.finish(0, pair.now)
    pair.run(5.0)
    assert pair.text(pair.client) == b"".join(words)
    assert pair.sent[pair.node] < 1.6 * len(b"".join(words))


def test_a_cut_of_two_seconds_costs_no_chunk() -> None:
    pair = Pair()
    pair.ask()
    pair.run(0.5)
    pair.answer(WORDS[:20])
    pair.drop = lambda data, number: True  # type: ignore[method-assign]
    before = pair.sent[pair.node]
    for word in WORDS[20:40]:
        pair.node.send(0, word, pair.now) if pair.node._streams[0].sender.end is None else None
        pair.run(0.1)
    assert pair.sent[pair.node] - before < 60_000
    pair.drop = lambda data, number: False  # type: ignore[method-assign]
    pair.run(10.0)
    assert pair.text(pair.client).startswith(b"".join(WORDS[:20]))
    assert pair.client.path.packets_sent < 100


def test_the_node_may_be_told_to_stop() -> None:
    pair = Pair()
    pair.ask()
    pair.run(0.2)
    pair.node.send(0, b"one", pair.now)
    pair.run(0.1)
    pair.drop = lambda data, number: number % 2 == 0  # type: ignore[method-assign]
    pair.client.stop(0, pair.now)
    pair.run(1.0)
    assert Stopped(0) in pair.log[pair.node]
    pair.node.finish(0, pair.now, b"stopped")
    pair.run(2.0)
    assert pair.log[pair.client][-1] == Ended(0, True, b"stopped")


def test_a_client_that_moves_is_followed_but_not_flooded() -> None:
    pair = Pair()
    pair.ask()
    pair.run(0.2)
    pair.answer(WORDS[:10], gap=0.02) if False else None
    for word in WORDS[:10]:
        pair.node.send(0, word, pair.now)
        pair.run(0.02)
    pair.client_address = "elsewhere"
    for word in WORDS[10:]:
        pair.node.send(0, word, pair.now)
        pair.run(0.02)
    pair.node.finish(0, pair.now)
    pair.run(5.0)
    assert Moved("elsewhere") in pair.log[pair.node]
    assert pair.text(pair.client) == b"".join(WORDS)


def test_an_old_packet_from_elsewhere_moves_nothing() -> None:
    pair = Pair()
    pair.ask()
    stolen: list[bytes] = []
    pair.mangle = lambda data: [*stolen, data][-1:]  # type: ignore[method-assign]
    old = pair.client.datagrams_to_send(0.0)[0][0]
    pair.node.receive_datagram(old, "client", 0.0)
    pair.run(1.0)
    rejected = pair.node.rejected
    pair.node.receive_datagram(old, "thief", pair.now)
    assert pair.node.address == "client"
    assert pair.node.rejected == rejected + 1


def test_an_unproven_address_gets_at_most_three_times_what_came_from_it() -> None:
    node = Connection(SECRET, 7, client=False, address=None, entropy=lambda size: bytes(size), now=0.0)
    sealer = Sealer(SECRET, 7, from_client=True)
    head = packet.head(7, 0)
    body = packet.encode(packet.Data(0, 0, [b"request"])) + packet.encode(packet.End(0, 1, 7, 0))
    datagram = head + sealer.seal(0, head, body)
    node.receive_datagram(datagram, "spoofed", 0.0)
    out = 0
    for i in range(400):
        while (event := node.next_event()) is not None:
            assert not isinstance(event, Closed)
        if i % 10 == 0:
            node.send(0, b"x" * 500, i * 0.01)
        out += sum(len(data) for data, _ in node.datagrams_to_send(i * 0.01))
    assert out <= 3 * len(datagram)


@pytest.mark.parametrize("wrong", ["secret", "number", "direction", "garbage", "replay"])
def test_what_is_not_authentic_is_counted_and_leaves_no_trace(wrong: str) -> None:
    pair = Pair()
    pair.ask()
    (good, _), *_ = pair.client.datagrams_to_send(0.0)
    match wrong:
        case "secret":
            other = Connection(bytes(32), 7, client=True, address="node", entropy=lambda size: bytes(size), now=0.0)
            other.open(0)
            other.send(0, b"x", 0.0)
            bad = other.datagrams_to_send(0.0)[0][0]
        case "number":
            bad = good[:1] + b"\0\0\0\x08" + good[5:]
        case "direction":
            bad = pair.node._sealed([packet.Ping()])
        case "garbage":
            bad = random.Random(1).randbytes(300)
        case _:
            pair.node.receive_datagram(good, "client", 0.0)
            while pair.node.next_event():
                pass
            bad = good
    before = (pair.node.received, pair.node.rejected)
    pair.node.receive_datagram(bad, "attacker", 1.0)
    assert (pair.node.received, pair.node.rejected) == (before[0], before[1] + 1)
    assert pair.node.next_event() is None
    assert pair.node.address != "attacker"


def test_many_slots_at_once() -> None:
    pair = Pair()
    for slot in range(8):
        pair.ask(slot)
    pair.run(0.3)
    for i in range(30):
        for slot in range(8):
            pair.node.send(slot, b"%d:%d " % (slot, i), pair.now)
        pair.run(0.02)
    for slot in range(8):
        pair.node.finish(slot, pair.now)
    pair.run(2.0)
    for slot in range(8):
        assert pair.text(pair.client, slot) == b"".join(b"%d:%d " % (slot, i) for i in range(30))


def test_a_text_goes_on_from_a_number() -> None:
    pair = Pair()
    from node.link.frame import crc32

    pair.client.open(0, receive_from=10, crc=crc32(b"first half"), size=10)
    pair.client.send(0, b"go on at 10", pair.now)
    pair.client.finish(0, pair.now)
    pair.node.open(0, send_from=10, crc=crc32(b"first half"), size=10)
    pair.run(0.2)
    pair.node.send(0, b", second half", pair.now)
    pair.node.finish(0, pair.now)
    pair.run(1.0)
    assert pair.log[pair.client][-2:] == [Came(0, 10, b", second half"), Ended(0, True, b"")]


def test_ends_that_read_late_know_how_long_the_way_is() -> None:
    pair = Pair()
    pair.ask()
    [(question, _)] = pair.client.datagrams_to_send(0.0)
    pair.node.receive_datagram(question, "client", 0.3, came=0.02)
    [(answer, _)] = pair.node.datagrams_to_send(0.3)
    pair.client.receive_datagram(answer, "node", 0.7, came=0.32)
    assert pair.client.path.min_rtt == pytest.approx(0.04, abs=1e-3)
    assert pair.client.path.srtt == pytest.approx(0.42, abs=1e-3)


def test_news_wait_for_a_path_that_is_not_free() -> None:
    pair = Pair()
    pair.ask()
    pair.run(0.5)
    pair.node._out._free_at = pair.now + 0.3
    pair.node.send(0, b"word", pair.now)
    assert pair.node.datagrams_to_send(pair.now) == []
    assert pair.node.timer(pair.now) == pytest.approx(pair.now + 0.3)
    pair.node.send(0, b"s", pair.now)
    assert pair.node.datagrams_to_send(pair.now + 0.29) == []
    assert len(pair.node.datagrams_to_send(pair.now + 0.3)) == 1


def test_a_copy_that_does_not_go_is_not_due_any_more() -> None:
    """Else whoever waits for the timer would come back at once, for ever."""
    pair = Pair()
    pair.ask()
    pair.run(0.5)
    pair.node.send(0, b"word", pair.now)
    assert len(pair.node.datagrams_to_send(pair.now)) == 1
    schedule = pair.node._streams[0].schedule
    schedule._bucket, schedule._filled = 0.0, pair.now + 1.0  # too many copies lately
    due = pair.node.timer(pair.now)
    assert pair.now < due < pair.now + 0.01, "the copy's turn"
    assert pair.node.datagrams_to_send(due) == []
    assert pair.node.timer(due) > due


@pytest.mark.parametrize(("late", "copies"), [(0.0, 1), (0.015, 1), (0.03, 0)])
def test_a_copy_that_is_late_does_not_go(late: float, copies: int) -> None:
    """A node that is so busy sends what is new; copies, too, would make it later still."""
    pair = Pair()
    pair.ask()
    pair.run(0.5)
    pair.node.send(0, b"word", pair.now)
    pair.node.datagrams_to_send(pair.now)
    due = pair.node.timer(pair.now)
    assert due < pair.now + 0.01
    assert len(pair.node.datagrams_to_send(due + late)) == copies
    assert pair.node.timer(due + late) > due + late


def test_closing_is_told_once() -> None:
    pair = Pair()
    pair.ask()
    pair.run(0.2)
    pair.node.close(3)
    pair.run(0.2)
    assert pair.log[pair.client][-1] == Closed(3)
    assert pair.client.closed
    assert pair.node.closed
    assert pair.node.datagrams_to_send(pair.now) == []
    assert pair.node.dead(pair.now)


def test_silence_is_death() -> None:
    pair = Pair()
    pair.ask()
    pair.run(0.2)
    assert not pair.node.dead(pair.now)
    assert pair.node.dead(pair.now + 61)


def test_a_client_that_waits_pings() -> None:
    pair = Pair()
    pair.ask()
    pair.run(3.0)
    assert pair.client.last_heard > pair.now - 0.6
    assert pair.node.last_heard > pair.now - 0.6


def test_a_proof_that_was_lost_is_given_again() -> None:
    """The client has its text and asks for nothing; the node, not sure of its address, may have no room to ask."""
    pair = Pair()
    pair.ask()
    pair.flush()
    [(_, _, _, question, _)] = pair.wire
    pair.node.receive_datagram(question, "client", 0.02)
    pair.node.send(0, b"answer", 0.02)
    pair.node.finish(0, 0.02, b"done")
    for data, _ in pair.node.datagrams_to_send(0.02):
        pair.client.receive_datagram(data, "node", 0.04)
    while pair.client.next_event():
        pass
    assert not pair.client._expected
    assert pair.client.datagrams_to_send(0.04), "the proof, which is lost"
    pair.wire.clear()
    pair.node._where._bytes_out = 3 * pair.node._where._bytes_in
    pair.now = 0.04
    assert pair.node.timer(0.04) == math.inf
    pair.run(10.0)
    assert Delivered(0, True) in pair.log[pair.node]
    assert pair.client.timer(pair.now) == pair.node.timer(pair.now) == math.inf, "nothing is left to do"


def test_slots_are_used_once() -> None:
    pair = Pair()
    pair.ask()
    with pytest.raises(ValueError, match="slot 0"):
        pair.client.open(0)
    with pytest.raises(ValueError, match="slot 256"):
        pair.client.open(256)


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=80), max_size=4))
def test_sealed_nonsense_is_counted_and_nothing_else(bodies: list[bytes]) -> None:
    """Even the holder of the key cannot break the other end."""
    node = Connection(SECRET, 7, client=False, address=None, entropy=lambda size: bytes(size), now=0.0)
    sealer = Sealer(SECRET, 7, from_client=True)
    for number, body in enumerate(bodies):
        head = packet.head(7, number)
        node.receive_datagram(head + sealer.seal(number, head, body), "client", number * 0.1)
        node.datagrams_to_send(number * 0.1)
        while node.next_event():
            pass


def test_a_ping_travels_with_an_acknowledgement() -> None:
    """An acknowledgement alone asks for nothing: the ping would be forgotten."""
    pair = Pair()
    pair.client.ping()
    pair.run(1.0)
    pair.node.open(0)
    pair.client.open(0)
    pair.node.send(0, b"word", pair.now)
    for data, _ in pair.node.datagrams_to_send(pair.now):
        pair.client.receive_datagram(data, "node", pair.now)
    pair.client.ping()
    ((data, _),) = pair.client.datagrams_to_send(pair.now)
    _, number, end = packet.read_head(data, pair.client._next_number) or (0, 0, 0)
    body = Sealer(SECRET, 7, from_client=True).open(number, data[:end], data[end:])
    assert body is not None
    assert {type(block) for block in packet.decode(body)} == {packet.Ack, packet.Got, packet.Ping}


def test_a_text_of_more_chunks_than_may_be_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.link.sender.SPAN", 8)
    pair, rng = Pair(), random.Random(3)
    pair.drop = lambda data, number: rng.random() < 0.2  # type: ignore[method-assign]
    pair.ask()
    pair.run(1.0)
    for i in range(300):
        pair.node.send(0, b"%d " % i, pair.now)
    pair.node.finish(0, pair.now)
    pair.run(60.0)
    came = [event.chunk for event in pair.log[pair.client] if isinstance(event, Came)]
    assert came == [b"%d " % i for i in range(300)]
    assert Ended(0, True) in pair.log[pair.client]


def test_on_a_full_path_a_request_is_acknowledged_with_the_reply() -> None:
    pair = Pair()
    pair.ask()
    pair.run(0.5)
    pair.node.path._limit = 1000.0
    assert pair.node.path.tight
    before = pair.sent[pair.node]
    pair.ask(1)
    pair.run(0.2)
    assert pair.sent[pair.node] == before, "an acknowledgement of its own would take 74 ms of the path"
    pair.node.send(1, b"word", pair.now)
    pair.run(0.04)
    assert pair.text(pair.client, 1) == b"word"
    assert not pair.client._streams[1].active, "it knows that its request has come"


def test_on_the_fullest_of_paths_acknowledgements_wait_for_news_that_wait_long() -> None:
    """Alone they would take the line from them, again and again."""
    pair = Pair()
    pair.ask()
    pair.run(0.5)
    pair.node.path._limit = 200.0
    pair.node.send(0, b"word", pair.now)
    pair.run(0.001)
    before = len(pair.wire), pair.sent[pair.node]
    pair.node.send(0, b"more", pair.now)
    pair.client.ping()
    pair.run(0.28)
    assert pair.sent[pair.node] == before[1], "an acknowledgement is due, and the line is taken for 0.3 s yet"
    pair.run(0.4)
    assert pair.text(pair.client) == b"wordmore"


class Dip(Pair):
    """A line that carries very little for some seconds."""

    free_at = 0.0

    def drop(self, data: bytes, number: int) -> bool:
        rate = 400.0 if 10 < self.now < 16 else 40e3
        self.free_at = max(self.free_at, self.now) + (len(data) + 28) / rate
        self.delay = self.free_at - self.now + 0.03
        return False


def test_a_line_that_was_full_for_some_seconds_is_used_again() -> None:
    """What gathered meanwhile leaves in long packets: that short ones are no quicker is no sign of a queue."""
    pair = Dip()
    pair.ask()
    pair.run(1.0)
    behind = []
    for number in range(1400):
        pair.node.send(0, b"%4d " % number, pair.now)
        pair.run(0.05)
        behind.append(pair.node.unacknowledged())
    assert max(behind[200:400]) > 300
    assert max(behind[1000:]) < 100
