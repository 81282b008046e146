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
        (Data(1, 2, [b"ab", b""]), "01 01 0002 02 02 6162 00"),
        (Data(1, 65537, [b"x" * 128]), "01 01 0001 01 8080" + "78" * 128),
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


def test_heads() -> None:
    assert packet.head(7, 5) == bytes.fromhex("4f 00000007 00000005")
    assert packet.read_head(packet.head(7, 5) + b"x") == (7, 5)
    for wrong in (b"", b"\x4f", packet.head(7, 5), b"\x00" * 40, packet.head(7, 5) + bytes(packet.MAX_DATAGRAM)):
        assert packet.read_head(wrong) is None


def test_sizes_are_what_they_say() -> None:
    for chunk in (b"", b"x" * 127, b"x" * 128):
        assert len(encode(Data(0, 0, [chunk]))) == packet.DATA_HEAD + packet.data_size(chunk)
    assert len(encode(Repair(0, 0, 1, 0, [b"abc"]))) == packet.REPAIR_HEAD + 3
    assert len(encode(Flight(0, 0, 1, 0, 0, b"abc"))) == packet.FLIGHT_HEAD + 3
    with pytest.raises(ValueError, match="32768"):
        packet.varint(32768)
