"""COBS: published vectors, there and back, and noise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import LinkError
from node.link.cobs import Reader, decode, encode

# The examples of Wikipedia's article, which are those of the paper.
VECTORS = [
    ("", "01"),
    ("00", "0101"),
    ("0000", "010101"),
    ("001100", "01021101"),
    ("11220033", "0311220233"),
    ("11223344", "0511223344"),
    ("11000000", "0211010101"),
    (bytes(range(1, 255)).hex(), "ff" + bytes(range(1, 255)).hex() + "01"),
    (bytes(range(1, 256)).hex(), "ff" + bytes(range(1, 255)).hex() + "02ff"),
]


@pytest.mark.parametrize(("plain", "coded"), VECTORS)
def test_published_vectors(plain: str, coded: str) -> None:
    assert encode(bytes.fromhex(plain)) == bytes.fromhex(coded) + b"\0"
    assert decode(bytes.fromhex(coded)) == bytes.fromhex(plain)


def test_the_short_form_of_254_bytes_is_understood() -> None:
    assert decode(b"\xff" + b"x" * 254) == b"x" * 254


@given(st.binary(max_size=1200))
def test_there_and_back_without_zeros(data: bytes) -> None:
    coded = encode(data)
    assert b"\0" not in coded[:-1]
    assert len(coded) <= len(data) + len(data) // 254 + 2
    assert decode(coded[:-1]) == data


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.lists(st.integers(1, 9), min_size=1))
def test_any_split_gives_the_same(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(encode, frames))
    reader, found, at, turn = Reader(100), [], 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        found += reader.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert found == frames


@given(st.binary(max_size=2000))
def test_noise_costs_at_most_one_frame(noise: bytes) -> None:
    reader = Reader(64)
    for one in reader.feed(noise):
        assert isinstance(one, bytes | LinkError)
    assert reader.feed(b"\0" + encode(b"hello"))[-1] == b"hello"


def test_what_never_ends_is_one_error_and_no_memory() -> None:
    reader = Reader(64)
    found = [one for _ in range(100) for one in reader.feed(b"x" * 50)]
    assert len(found) == 1
    assert isinstance(found[0], LinkError)
    assert reader.feed(b"\0" + encode(b"after")) == [b"after"]
