"""Chunks in order, however they come."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.errors import LinkError
from node.link import flight, packet
from node.link.fec import repair_symbol
from node.link.frame import crc32
from node.link.packet import Data, End, Flight, Got, Repair
from node.link.pairs import parity
from node.link.receiver import AHEAD, HELD, HISTORY, KEPT, PAIRS, Receiver, Store


def end_of(chunks: list[bytes]) -> End:
    text = b"".join(chunks)
    return End(0, len(chunks), len(text), crc32(text), b"m")


def test_order_is_restored_and_copies_are_dropped() -> None:
    receiver = Receiver(0)
    assert receiver.data(Data(0, 2, [b"c"])) == []
    assert receiver.gaps
    assert receiver.data(Data(0, 0, [b"a"])) == [b"a"]
    assert receiver.data(Data(0, 0, [b"a", b"b", b"c"])) == [b"b", b"c"]
    assert not receiver.gaps
    assert receiver.data(Data(0, 0, [b"a", b"b", b"c"])) == []


def test_what_is_acknowledged() -> None:
    receiver = Receiver(5)
    assert receiver.got() == Got(5, 0, [])
    receiver.data(Data(5, 0, [b"a"]))
    receiver.data(Data(5, 3, [b"d", b"e"]))
    receiver.data(Data(5, 9, [b"j"]))
    assert receiver.got() == Got(5, 1, [(2, 2), (4, 1)])
    receiver.ended(End(5, 12, 0, 0))
    assert receiver.got() == Got(5, 1, [(2, 2), (4, 1), (2, 0)])


def test_numbers_go_on_past_16_bits() -> None:
    receiver = Receiver(0, first=65_534)
    assert receiver.data(Data(0, 65_534, [b"a", b"b", b"c"])) == [b"a", b"b", b"c"]
    assert receiver.next == 65_537
    assert receiver.data(Data(0, 1, [b"d"])) == [b"d"]
    assert receiver.data(Data(0, 65_535, [b"old"])) == []


@settings(max_examples=150)
@given(st.lists(st.binary(max_size=30), min_size=1, max_size=60), st.integers(0, 2**31), st.integers(0, 2**32))
def test_any_schedule_ends_in_the_exact_text(chunks: list[bytes], first: int, seed: int) -> None:
    """Chunks, symbols and the end, lost, repeated and out of order, until all has come."""
    rng = random.Random(seed)
    before = b"before"
    receiver = Receiver(0, first, crc32(before), len(before))
    text = before + b"".join(chunks)
    end = End(0, first + len(chunks), len(text), crc32(text))
    out: list[bytes] = []
    for _ in range(5000):
        if receiver.done:
            break
        at = rng.randrange(len(chunks))
        count = rng.randint(1, min(len(chunks) - at, 64))
        window = chunks[at : at + count]
        match rng.randrange(4):
            case 0:
                symbol = rng.randrange(127)
                made = [repair_symbol(window, first + at, symbol + i) for i in range(2)]
                receiver.repair(Repair(0, (first + at) & 0xFFFF, count, symbol, made))
                out += receiver.mend()
            case 1:
                out += receiver.ended(end)
            case _:
                out += receiver.data(Data(0, (first + at) & 0xFFFF, window[: rng.randint(1, 3)]))
    assert receiver.whole
    assert out == chunks


def test_symbols_repair_what_was_lost() -> None:
    chunks = [b"chunk %d" % i for i in range(20)]
    receiver = Receiver(0)
    receiver.data(Data(0, 0, chunks[:10]))
    receiver.data(Data(0, 12, chunks[12:]))
    symbols = [repair_symbol(chunks[5:], 5, i) for i in (7, 8)]
    receiver.repair(Repair(0, 5, 15, 7, symbols))
    assert receiver.mend() == chunks[10:]
    assert receiver.repaired == 2
    assert receiver.got() == Got(0, 20, [])


def said(groups: list[list[bytes]], lost: set[int], first: int = 0) -> tuple[Receiver, list[bytes]]:
    """Packets that bring these groups, each with the parity of the two before, but for some that are lost."""
    receiver, came = Receiver(0, first), []
    for i, group in enumerate(groups):
        older, newer = groups[i - 2 : i] if i > 1 else ([], [])
        told = parity(older, newer) if i > 1 else b""
        start = first + sum(map(len, groups[:i]))
        if i not in lost:
            came += receiver.data(Data(0, start % 65536, group, len(older), len(newer), told))
            came += receiver.mend()
    return receiver, came


@pytest.mark.parametrize("first", [0, 250, 65_530])
@pytest.mark.parametrize("lost", [set(), {1}, {2, 3}, {2, 4}, {1, 2, 5, 6}])
def test_pairs_repair_one_packet_and_two_in_a_row(lost: set[int], first: int) -> None:
    groups = [[b"%d" % i * (1 + j) for j in range(1 + i % 3)] for i in range(10)]
    receiver, came = said(groups, lost, first)
    assert came == [word for group in groups for word in group]
    assert receiver.repaired == sum(len(groups[i]) for i in lost)
    assert receiver._pairs == []


def test_pairs_of_what_never_comes_are_few() -> None:
    receiver, _ = said([[b"a"]] * 60, set(range(1, 60, 2)) | {10, 20})
    assert len(receiver._pairs) <= PAIRS
    receiver.close()
    assert receiver._store.kept.free == KEPT


def test_symbols_come_before_the_chunks_they_cover() -> None:
    chunks = [b"a", b"bb", b"ccc"]
    receiver = Receiver(0)
    receiver.repair(Repair(0, 0, 3, 0, [repair_symbol(chunks, 0, 0)]))
    assert receiver.gaps
    assert receiver.mend() == []
    assert receiver.data(Data(0, 0, chunks[:2])) == chunks[:2]
    assert receiver.mend() == chunks[2:]


def test_a_flight_gives_what_its_parity_allows() -> None:
    chunks = [b"chunk %d " % i * 20 for i in range(40)]
    rows = [packet.encode(Data(0, i * 5, chunks[i * 5 : i * 5 + 5])) for i in range(8)]
    pieces = flight.shards(rows, 3)
    receiver = Receiver(0)
    out: list[bytes] = []
    for index in (0, 10, 2, 4, 9, 6, 5, 8):
        out += receiver.flight(Flight(0, 1, 8, 3, index, pieces[index]))
    assert out == chunks
    assert receiver.repaired == 3


@pytest.mark.parametrize(
    "block",
    [
        Flight(0, 1, 0, 0, 0, b""),
        Flight(0, 1, 33, 0, 0, b""),
        Flight(0, 1, 1, 0, 0, b"\x04\x00"),
        Flight(0, 1, 1, 0, 0, b"\xff"),
    ],
)
def test_a_flight_of_nonsense_is_a_link_error(block: Flight) -> None:
    with pytest.raises(LinkError):
        Receiver(0).flight(block)


def test_a_wrong_text_is_told_and_final() -> None:
    receiver = Receiver(0)
    receiver.data(Data(0, 0, [b"abc"]))
    receiver.ended(End(0, 1, 3, crc32(b"abd")))
    assert receiver.wrong
    assert receiver.done
    assert receiver.got().wrong
    assert receiver.data(Data(0, 1, [b"more"])) == []
    late = Receiver(0)
    late.data(Data(0, 0, [b"a", b"b"]))
    late.ended(End(0, 1, 1, crc32(b"a")))
    assert late.wrong, "more came than there is"


def test_the_first_end_counts() -> None:
    receiver = Receiver(0)
    receiver.ended(end_of([b"abc"]))
    receiver.ended(End(0, 7, 9, 9))
    assert receiver.data(Data(0, 0, [b"abc"])) == [b"abc"]
    assert receiver.whole


def test_memory_is_bounded() -> None:
    store = Store()
    receiver, other = Receiver(0, store=store), Receiver(1, store=store)
    receiver.data(Data(0, AHEAD + 5, [b"too far ahead"]))
    for number in range(1, 2000):
        receiver.data(Data(0, number, [b"x" * 1000]))
        other.flight(Flight(1, 1, 32, 32, number % 31, bytes(1000)))
    assert 0 <= store.free < 1100
    assert len(receiver._ahead) + len(other._shards) <= HELD // 1000
    assert len(receiver.data(Data(0, 0, [b"x" * 1000]))) > 900, "a full store does not stop the next chunk"
    receiver.ended(End(0, receiver.next, 1000 * receiver.next, crc32(b"x" * 1000 * receiver.next)))
    other.ended(End(1, 0, 0, 0))
    assert receiver.whole
    assert store.free == HELD, "what is over is given back"
    empty = Receiver(0)
    for first in range(1, AHEAD, 255):
        empty.data(Data(0, first, [b""] * 255))
    assert empty._store.free < HELD - 64 * 3000, "empty chunks have their price, too"
    receiver = Receiver(0)
    for number in range(1000):
        receiver.repair(Repair(0, number % 100, 60, number % 128, [b"y" * 200] * 3))
    assert len(receiver._symbols) <= 24
    fresh = Receiver(0)
    for number in range(1000):
        fresh.data(Data(0, number, [b"x"]))
    assert len(fresh._recent) == HISTORY
    fresh.ended(End(0, 1000, 1000, crc32(b"x" * 1000)))
    assert not fresh._recent
