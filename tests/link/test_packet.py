"""Datagrams: every block there and back, noise is one LinkError, and the layout is the documented one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import LinkError
from node.link import packet
from node.link.packet import (
    Ack,
    Block,
    Challenge,
    Close,
    Data,
    End,
    Flight,
    Got,
    Ping,
    Repair,
    Response,
    Stop,
    decode,
    encode,
)

byte, short, long = st.integers(0, 255), st.integers(0, 65535), st.integers(0, 2**32 - 1)
shards = st.integers(1, 40).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=6)
)


count = st.integers(0, 32767)
gots = st.builds(Got, byte, long, st.lists(st.tuples(count, count), max_size=8), st.booleans(), st.booleans())
word, few = st.binary(max_size=15), st.integers(1, 3)
paired = st.builds(
    Data, byte, short, st.lists(word, min_size=1, max_size=3), few, few, st.binary(min_size=1, max_size=50)
)
blocks: st.SearchStrategy[Block] = st.one_of(
    st.builds(Data, byte, short, st.lists(st.binary(max_size=300), max_size=5)),
    st.builds(Repair, byte, short, byte, byte, shards),
    st.builds(End, byte, long, long, long, st.binary(max_size=255)),
    st.builds(Stop, byte),
    st.builds(Ack, long, st.integers(0, 65535).map(lambda n: n * packet.DELAY_UNIT_S), st.integers(0, 2**64 - 1)),
    gots,
    st.builds(Flight, byte, byte, byte, byte, byte, st.binary(max_size=300)),
    st.builds(Challenge, st.binary(min_size=8, max_size=8)),
    st.builds(Response, st.binary(min_size=8, max_size=8)),
    st.just(Ping()),
    st.builds(Close, byte),
)


@given(st.lists(blocks, max_size=6), st.integers(0, 9))
def test_there_and_back(row: list[Block], padding: int) -> None:
    assert decode(b"".join(map(encode, row)) + bytes(padding)) == row


@given(st.lists(blocks, max_size=3), paired)
def test_what_is_paired_goes_on_to_the_end(row: list[Block], last: Data) -> None:
    assert decode(b"".join(map(encode, [*row, last]))) == [*row, last]


@given(st.binary(max_size=300))
def test_noise_is_blocks_or_one_link_error(noise: bytes) -> None:
    try:
        decode(noise)
    except LinkError:
        pass


@given(blocks)
def test_a_block_that_is_cut_short_is_a_link_error(block: Block) -> None:
    whole = encode(block)
    for end in range(1, len(whole)):
        with pytest.raises(LinkError):
            decode(whole[:end])


@pytest.mark.parametrize(
    ("block", "layout"),
    [
        (Data(1, 2, [b"ab", b""]), "82 01 0002 20 6162"),
        (Data(1, 65537, [b"abc", b"", b"x" * 15]), "83 01 0001 30 f0 616263" + "78" * 15),
        (Data(1, 2, [b"ab", b"y" * 16]), "01 01 0002 02 02 6162 10" + "79" * 16),
        (Data(1, 2, []), "01 01 0002 00"),
        (Data(1, 65537, [b"x" * 128]), "01 01 0001 01 8080" + "78" * 128),
        (Data(1, 0x10203, [b"ab", b""], 1, 3, b"xyz"), "67 01 0203 20 6162 78797a"),
        (Repair(1, 2, 3, 4, [b"ab", b"cd"]), "02 01 0002 03 04 02 02 6162 6364"),
        (End(1, 2, 3, 4, b"m"), "03 01 00000002 00000003 00000004 01 6d"),
        (Stop(9), "04 09"),
        (Ack(1, 0.0002, 5), "05 00000001 0002 0000000000000005"),
        (Got(1, 7, [(1, 2), (300, 0)], True, False), "06 01 01 00000007 02 01 02 812c 00"),
        (Flight(1, 2, 3, 4, 5, b"s"), "07 01 02 03 04 05 0001 73"),
        (Ping(), "0a"),
        (Close(3), "0b 03"),
    ],
)
def test_the_layout_is_the_documented_one(block: Block, layout: str) -> None:
    assert encode(block) == bytes.fromhex(layout)


def test_more_words_than_their_head_can_count_are_data() -> None:
    for count, head in ((127, b"\xff\x00\x00\x00"), (128, b"\x01\x00\x00\x00\x80")):
        coded = encode(Data(0, 0, [b"a"] * count))
        assert coded.startswith(head)
        assert decode(coded) == [Data(0, 0, [b"a"] * count)]


def test_a_length_without_its_word_is_a_link_error() -> None:
    assert decode(bytes.fromhex("81 00 0000 10 61")) == [Data(0, 0, [b"a"])]
    for wrong in ("81 00 0000 11 61", "80 00 0000"):
        with pytest.raises(LinkError):
            decode(bytes.fromhex(wrong))


def test_a_pair_of_nothing_is_a_link_error() -> None:
    assert decode(bytes.fromhex("55 01 0002 20 6162 78")) == [Data(1, 2, [b"ab"], 1, 1, b"x")]
    for wrong in ("51 01 0002 20 6162 78", "54 01 0002 20 6162 78", "55 01 0002 20 6162", "45 01 0002 20 6162", "40"):
        with pytest.raises(LinkError):
            decode(bytes.fromhex(wrong))


def test_heads() -> None:
    assert packet.head(7, 5) == bytes.fromhex("4f 00000007 00000005")
    assert packet.read_head(packet.head(7, 5) + b"x") == (7, 5, 9)
    assert packet.head(7, 5, -1) == bytes.fromhex("4e 00000007 0005")
    assert packet.read_head(packet.head(7, 5, -1) + b"x") == (7, 5, 7)
    for whole in (packet.head(7, 5), packet.head(7, 5, -1)):
        for wrong in (b"", whole[:1], whole, b"\x00" * 40, whole + bytes(packet.MAX_DATAGRAM)):
            assert packet.read_head(wrong) is None


@given(st.integers(0, 2**32 - 1), st.integers(0, 0x3FFF), st.integers(0, 0x3FFF))
def test_a_short_head_means_the_number_whatever_came_since(acked: int, ahead: int, come: int) -> None:
    """The receiver knows at least what it acknowledged, and no more than was sent."""
    number = min(acked + ahead, 2**32 - 1)
    data = packet.head(9, number, acked) + b"x"
    assert len(data) == 8
    for following in (acked + 1, number, number + 1, min(number + come, acked + 0x3FFF) + 1):
        assert packet.read_head(data, following) == (9, number, 7)


def test_a_number_far_from_what_was_acknowledged_is_said_whole() -> None:
    assert packet.head(9, 0x4000, 0) == packet.head(9, 0x4000)
    assert packet.read_head(packet.head(9, 0xFFFF, 0xFFFE) + b"x", 0) == (9, 0xFFFF, 7), "never below zero"
    assert packet.read_head(packet.head(9, 0, -1) + b"x", 2**32) == (9, 2**32 - 0x10000, 7), "nor of 33 bits"


def test_sizes_are_what_they_say() -> None:
    for chunk in (b"x" * 16, b"x" * 127, b"x" * 128):
        assert len(encode(Data(0, 0, [chunk]))) == packet.DATA_HEAD + packet.data_size(chunk)
    for words in ([b""], [b"x" * 15], [b"word"] * 9):
        assert len(encode(Data(0, 0, words))) <= packet.DATA_HEAD + sum(map(packet.data_size, words)) - 1
    assert len(encode(Repair(0, 0, 1, 0, [b"abc"]))) == packet.REPAIR_HEAD + 3
    assert len(encode(Flight(0, 0, 1, 0, 0, b"abc"))) == packet.FLIGHT_HEAD + 3
    with pytest.raises(ValueError, match="32768"):
        packet.varint(32768)
