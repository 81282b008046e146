"""Whoever holds a link's key may say what he likes: it costs the node a bounded time, memory and number of bytes."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Sequence

import pytest

from node.link import packet
from node.link.connection import MAX_SLOTS, Connection
from node.link.crypto import MAX_PACKETS, Sealer
from node.link.events import Came, Closed
from node.link.frame import crc32
from node.link.packet import Ack, Block, Challenge, Data, End, Flight, Got, Ping, Repair, Response, Stop
from node.link.receiver import HELD, KEPT

SECRET = bytes(range(32))


class Attacker:
    """A node, and packets of any content for it."""

    def __init__(self) -> None:
        self.node = Connection(SECRET, 7, client=False, address=None, entropy=lambda size: b"c" * size, now=0.0)
        self._seal = Sealer(SECRET, 7, from_client=True)
        self._open = Sealer(SECRET, 7, from_client=False)
        self.number = 0
        self._heard = 0

    def put(self, blocks: Sequence[Block], now: float = 0.0, address: str = "attacker", body: bytes = b"") -> int:
        head = packet.head(7, self.number)
        body += b"".join(map(packet.encode, blocks))
        data = head + self._seal.seal(self.number, head, body)
        self.number += 1
        self.node.receive_datagram(data, address, now)
        return len(data)

    def said(self, now: float) -> tuple[int, list[Block]]:
        """Bytes of what the node sends now, and its blocks."""
        size, blocks = 0, []
        for data, _ in self.node.datagrams_to_send(now):
            size += len(data)
            _, number, end = packet.read_head(data, self._heard) or (0, 0, 0)
            self._heard = max(self._heard, number + 1)
            opened = self._open.open(number, data[:end], data[end:])
            assert opened is not None
            assert len(data) <= packet.MAX_DATAGRAM
            blocks += packet.decode(opened)
        return size, blocks

    def ask(self, pad: int = 0) -> None:
        self.put([Data(0, 0, [b"r"]), End(0, 1, 1, crc32(b"r"))], body=bytes(pad))

    def prove(self, now: float = 0.0) -> None:
        _, blocks = self.said(now)
        (challenge,) = {block for block in blocks if isinstance(block, Challenge)}
        self.put([Response(challenge.token)], now)


def test_acknowledgements_to_a_victim_are_bounded_too() -> None:
    """Sixteen slots full of gaps make long acknowledgements."""
    attacker = Attacker()
    for slot in range(16):
        attacker.put([Data(slot, 2 * i + 1, [b"x"]) for i in range(40)])
    attacker.prove()
    attacker.said(0.1)
    came = attacker.put([Data(slot, 90, [b""]) for slot in range(16)], 1.0, "victim")
    sent = sum(attacker.said(1.0 + 0.01 * i)[0] for i in range(100))
    assert 0 < sent <= 3 * came


@pytest.mark.parametrize("pad", [0, 100, 200, 500])
def test_an_answer_that_finds_no_room_at_an_unproven_address_waits_without_a_loop(pad: int) -> None:
    attacker = Attacker()
    attacker.ask(pad)
    attacker.node.send(0, b"y" * 1000, 0.0)
    attacker.node.finish(0, 0.0, b"m" * 250)
    rounds, now, said = 0, 0.0, []
    while now < 5.0 and rounds < 200:
        said += attacker.said(now)[1]
        now = max(now + 1e-6, attacker.node.timer(now))
        rounds += 1
    assert rounds < 100, "the timer came back again and again without anything to send"
    attacker.put([Ping(), Response(b"c" * 8)], 5.0, body=bytes(400))
    assert any(isinstance(block, Data) for block in [*said, *attacker.said(5.0)[1]])


def test_a_leap_of_packet_numbers_costs_nothing() -> None:
    attacker = Attacker()
    attacker.put([Ping()])
    attacker.number = MAX_PACKETS - 1
    attacker.put([Ping()])
    assert attacker.node.received == 2
    assert attacker.node._acks.window._seen.bit_length() < 2000


def test_a_short_head_reaches_no_number_of_more_than_32_bits() -> None:
    """Such a number could not be acknowledged, and the error would be everybody's."""
    attacker = Attacker()
    attacker.number = MAX_PACKETS - 1
    attacker.put([Ping()])
    attacker.said(1.0)
    seal, head = attacker._seal, packet.SHORT_HEAD.pack(packet.SHORT_KIND, 7, 0)
    nonce = (seal._iv ^ MAX_PACKETS).to_bytes(12, "big")
    attacker.node.receive_datagram(head + seal._cipher.encrypt(nonce, packet.encode(Ping()), head), "attacker", 2.0)
    assert attacker.node.rejected == 1
    attacker.said(2.0)


def test_what_is_said_to_be_missing_and_came_long_ago_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    attacker, looked = Attacker(), []
    attacker.ask()
    attacker.prove()
    for i in range(500):
        attacker.node.send(0, b"word", float(i))
        attacker.said(float(i))
        attacker.put([Got(0, i)], float(i))
    sender = attacker.node._streams[0].sender
    assert sender.first_unacked > 490

    class Counting(dict[int, float]):
        def get(self, *key: object) -> float:
            looked.append(key)
            return 0.0

    monkeypatch.setattr(sender, "_sent", Counting(sender._sent))
    attacker.put([Got(0, 0, [(0x7FFF, 0)])] * 90, 600.0)
    assert 0 < len(looked) < 20 * 90


def test_the_last_packet_number_is_a_goodbye() -> None:
    attacker = Attacker()
    attacker.ask()
    attacker.prove()
    attacker.node._next_number = MAX_PACKETS - 1
    attacker.node.send(0, b"more", 1.0)
    assert any(isinstance(block, packet.Close) for block in attacker.said(1.0)[1])
    assert attacker.node.closed
    assert attacker.said(2.0) == (0, [])
    assert Closed(0) in iter(attacker.node.next_event, None)


def test_what_was_never_sent_cannot_have_come() -> None:
    attacker = Attacker()
    attacker.ask()
    attacker.prove()
    attacker.said(0.0)
    attacker.node._out._free_at = 5.0  # nothing leaves before
    for word in (b"a", b"b", b"c", b"d"):
        attacker.node.send(0, word, 0.1)
    attacker.put([Got(0, 0, [(2, 2)]), Got(0, 4), Got(0, 0, [], whole=True)], 0.2)
    sent = [block for i in range(100) for block in attacker.said(6.0 + i / 100)[1]]
    assert Data(0, 0, [b"a", b"b", b"c", b"d"]) in sent
    assert len(sent) < 20, "it does not go on as if there were news"


def test_a_reader_that_calls_a_text_wrong_frees_what_was_held() -> None:
    attacker = Attacker()
    attacker.ask()
    attacker.prove()
    for _ in range(50):
        attacker.node.send(0, b"x" * 500, 0.1)
    attacker.put([Got(0, 0, [], wrong=True)], 0.2)
    assert attacker.node.unacknowledged() == 0
    assert attacker.node._streams[0].sender.backlog == 0


def test_symbols_are_solved_a_few_times_a_datagram_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    attacker, solved = Attacker(), []
    monkeypatch.setattr("node.link.receiver.recover", lambda symbols, known: solved.append(1) or {})
    for slot in range(20):
        attacker.put([Repair(slot, 1, 24, i, [bytes((i + 1,)) * 20]) for i in range(23)])
    solved.clear()
    attacker.put([Data(i % 20, 200 + 2 * i, [b""]) for i in range(190)])
    assert len(solved) <= 4
    rejected = attacker.node.rejected
    for count in (0, 65, 255):
        attacker.put([Repair(0, 1, count, 0, [b"xx"])])
    assert attacker.node.rejected == rejected + 3


def test_every_slot_full_of_everything_is_bounded() -> None:
    attacker = Attacker()
    rng = random.Random(1)
    for slot in range(MAX_SLOTS):
        for first in range(1, 4096, 255):
            attacker.put([Data(slot, first, [b""] * 255)])
        for index in range(0, 40, 2):
            attacker.put([Flight(slot, 1, 32, 32, index, rng.randbytes(1000))])
        while attacker.node.next_event():
            pass
        attacker.node.datagrams_to_send(float(slot))
    streams = attacker.node._streams.values()
    assert len(streams) == MAX_SLOTS
    ahead = sum(64 * len(stream.receiver._ahead) for stream in streams)
    shards = sum(sum(map(len, stream.receiver._shards.values())) for stream in streams)
    assert ahead + shards <= HELD
    attacker.put([Data(200, 0, [b"next"])])
    assert Came(200, 0, b"next") in iter(attacker.node.next_event, None), "texts go on in order"


def test_a_keyholder_can_take_three_mebibytes_at_most() -> None:
    """All that each slot takes: texts that went well, symbols, chunks far ahead, flights; and packets unheard of."""
    attacker, rng = Attacker(), random.Random(1)
    attacker.put([Ping()], body=bytes(600))
    attacker.prove()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for slot in range(MAX_SLOTS):
            now = float(slot)
            much = slot < 20  # that fills what all share
            for first in range(0, 128 if much else 4, 4):
                attacker.put([Data(slot, first, [rng.randbytes(253) for _ in range(4)])], now)
            for index in range(0, 24 if much else 4, 4):
                attacker.put([Repair(slot, 100, 64, index, [rng.randbytes(250) for _ in range(4)])], now)
            for first in range(300, 4096 if much else 500, 255):
                attacker.put([Data(slot, first, [b""] * 255)], now)
            for index in range(0, 40 if much else 4, 2):
                attacker.put([Flight(slot, 1, 32, 32, index, rng.randbytes(1000))], now)
            while attacker.node.next_event():
                pass
            attacker.said(now)
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(attacker.node._streams) == MAX_SLOTS
    assert (1 << 20) < held < (3 << 20), f"{held:,} bytes"
    assert attacker.node._store.free < 2000, "or it would not have been all"
    assert attacker.node._store.kept.free < 2000


def test_what_was_kept_is_given_back() -> None:
    attacker = Attacker()
    words = [b"word%d" % i for i in range(200)]
    for first in range(0, 200, 10):
        attacker.put([Data(0, first, words[first : first + 10])])
    attacker.put([Repair(0, 190, 20, 0, [b"x" * 20] * 4), Data(0, 300, [b"ahead"])])
    store = attacker.node._store
    assert store.kept.free < KEPT
    assert store.free < HELD
    text = b"".join(words)
    attacker.put([End(0, 200, len(text), crc32(text))])
    assert (store.free, store.kept.free) == (HELD, KEPT)


def test_a_reader_that_never_acknowledges_stays_cheap() -> None:
    """Timeouts grow, and end at their longest, however many there were."""
    attacker = Attacker()
    attacker.ask()
    attacker.prove()
    attacker.node.send(0, b"word", 0.1)
    now = 0.2
    for _ in range(2500):
        attacker.said(now)
        attacker.put([Ping()], now)
        now += 2.0


def test_random_blocks_break_nothing() -> None:
    rng = random.Random(5)
    made = [
        lambda: Data(rng.randrange(4), rng.randrange(65536), [rng.randbytes(rng.randrange(9)) for _ in range(3)]),
        lambda: Data(rng.randrange(4), rng.randrange(24), [rng.randbytes(rng.randrange(20))]),
        lambda: Data(
            rng.randrange(4), rng.randrange(24), [b"paired"], rng.randint(1, 3), rng.randint(1, 3), rng.randbytes(9)
        ),
        lambda: Repair(rng.randrange(4), rng.randrange(99), rng.randrange(80), rng.randrange(256), [rng.randbytes(9)]),
        lambda: End(rng.randrange(4), rng.randrange(99), rng.randrange(99), rng.randrange(99)),
        lambda: Stop(rng.randrange(256)),
        lambda: Ack(rng.randrange(300), rng.random(), rng.getrandbits(64)),
        lambda: Got(rng.randrange(4), rng.randrange(20), [(rng.randrange(20), rng.randrange(20))] * 2),
        lambda: Flight(
            rng.randrange(4), rng.randrange(2), rng.randrange(4), rng.randrange(4), rng.randrange(8), rng.randbytes(5)
        ),
    ]
    attacker = Attacker()
    for i in range(3000):
        now = i / 100
        attacker.put([rng.choice(made)() for _ in range(rng.randrange(5))], now)
        if i % 7 == 0:
            attacker.put([], now, body=rng.randbytes(rng.randrange(40)))
        if i % 50 == 0 and (stream := attacker.node._streams.get(i // 50 % 4)) and stream.sender.end is None:
            attacker.node.send(i // 50 % 4, b"word", now)
        attacker.said(now)
        while attacker.node.next_event():
            pass
        assert attacker.node.timer(now) > now - 1.0
    assert not attacker.node.closed


def test_a_short_head_is_no_head() -> None:
    attacker = Attacker()
    for data in (b"", b"\x4f", struct.pack(">BII", 0x4F, 7, 0)):
        attacker.node.receive_datagram(data, "stranger", 0.0)
    assert attacker.node.rejected == 3
