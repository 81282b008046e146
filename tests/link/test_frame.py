"""The full frame: what is encoded is decoded, anything else is one LinkError."""

from __future__ import annotations

import zlib

import pytest
from crcmod.predefined import mkPredefinedCrcFun
from hypothesis import given
from hypothesis import strategies as st

from node.errors import LinkError
from node.link.frame import (
    MAX_META,
    MAX_PAYLOAD,
    Flag,
    Frame,
    Kind,
    Tlv,
    Totals,
    crc32,
    decode,
    encode,
    missing,
    missing_tlv,
    totals,
)

frames = st.builds(
    Frame,
    kind=st.sampled_from(Kind),
    stream=st.integers(0, 2**64 - 1),
    seq=st.integers(0, 2**32 - 1),
    payload=st.binary(max_size=300),
    flags=st.sampled_from([Flag(0), Flag.EOS, Flag.INTERRUPT, Flag.ECHO, Flag.EOS | Flag.ECHO]),
    meta=st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=60)), max_size=4).map(tuple),
)


@given(frames)
def test_there_and_back(frame: Frame) -> None:
    assert decode(encode(frame)) == frame


@given(frames, st.data())
def test_any_other_bytes_are_one_link_error(frame: Frame, data: st.DataObject) -> None:
    whole = bytearray(encode(frame))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(LinkError):
        decode(bytes(whole))
    with pytest.raises(LinkError):
        decode(encode(frame)[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(LinkError):
        decode(encode(frame) + b"\x00")


@given(st.binary(max_size=200))
def test_noise_with_a_right_crc_is_a_frame_or_one_link_error(noise: bytes) -> None:
    for head in (b"", b"\xc5", b"\xc5\x02"):
        body = head + noise
        try:
            frame = decode(body + crc32(body).to_bytes(4, "big"))
        except LinkError:
            continue
        assert decode(encode(frame)) == frame


def test_the_layout_is_the_documented_one() -> None:
    frame = Frame(Kind.DATA, 0x0102030405060708, 9, "é".encode(), Flag.ECHO, ((Tlv.QUALITY, b"\0\0\0\7"),))
    body = bytes.fromhex("c5 03 0102030405060708 00000009 0002 c3a9 0006 04 04 00000007")
    assert encode(frame) == body + zlib.crc32(body).to_bytes(4, "big")


def test_the_crc_is_zlibs_and_the_published_one() -> None:
    assert crc32(b"123456789") == zlib.crc32(b"123456789") == 0xCBF43926
    assert mkPredefinedCrcFun("crc-ccitt-false")(b"123456789") == 0x29B1
    for size in range(64):
        assert crc32(bytes(range(size))) == zlib.crc32(bytes(range(size)))


@pytest.mark.parametrize(
    "wrong",
    [
        Frame(Kind.DATA, 0, 0, b"x" * (MAX_PAYLOAD + 1)),
        Frame(Kind.DATA, -1, 0),
        Frame(Kind.DATA, 0, 2**32),
        Frame(Kind.DATA, 0, 0, meta=tuple((9, b"x" * 255) for _ in range(MAX_META // 255 + 1))),
        Frame(Kind.DATA, 0, 0, meta=((9, b"x" * 256),)),
    ],
)
def test_what_does_not_fit_its_field_is_not_encoded(wrong: Frame) -> None:
    with pytest.raises(ValueError, match=r"payload|metadata|format|range|too large"):
        encode(wrong)


def test_totals_and_missing_ranges_travel_as_tlvs() -> None:
    said = Totals(5, 70_000, 0xCBF43926)
    frame = decode(encode(Frame(Kind.DATA, 1, 5, flags=Flag.EOS, meta=(said.encode(),))))
    assert totals(frame) == said
    ranges = [(n * 10, 3) for n in range(40)]
    assert missing(decode(encode(Frame(Kind.ACK, 1, 5, meta=(missing_tlv(ranges),))))) == ranges[:32]
    assert totals(Frame(Kind.DATA, 1, 5)) is None
    assert missing(Frame(Kind.ACK, 1, 5)) == []


def test_tlvs_of_a_wrong_length_are_refused_when_read() -> None:
    with pytest.raises(LinkError):
        totals(Frame(Kind.DATA, 1, 5, meta=((Tlv.TOTALS, b"short"),)))
    with pytest.raises(LinkError):
        missing(Frame(Kind.ACK, 1, 5, meta=((Tlv.MISSING, b"short"),)))


def test_a_frame_too_long_is_refused_before_anything_is_made_of_it() -> None:
    with pytest.raises(LinkError, match="long"):
        decode(b"\xc5" * 70_000)
