"""Sealing: nothing opens but what was sealed, and nothing twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.link.crypto import MAX_PACKETS, SECRET_SIZE, TAG_SIZE, ReplayWindow, Sealer

SECRET = bytes(range(32))
HEAD = b"\x4f\0\0\0\7\0\0\0\5"


def test_what_one_end_seals_the_other_opens() -> None:
    sealer, opener = Sealer(SECRET, 7, from_client=True), Sealer(SECRET, 7, from_client=True)
    sealed = sealer.seal(5, HEAD, b"hello")
    assert len(sealed) == 5 + TAG_SIZE
    assert opener.open(5, HEAD, sealed) == b"hello"


@pytest.mark.parametrize(
    "other",
    [
        Sealer(bytes(32), 7, from_client=True),
        Sealer(SECRET, 8, from_client=True),
        Sealer(SECRET, 7, from_client=False),
    ],
)
def test_another_secret_link_or_direction_opens_nothing(other: Sealer) -> None:
    assert other.open(5, HEAD, Sealer(SECRET, 7, from_client=True).seal(5, HEAD, b"hello")) is None


@given(st.integers(0, 20), st.integers(1, 255))
def test_a_flipped_bit_is_noticed(place: int, flip: int) -> None:
    sealer = Sealer(SECRET, 7, from_client=True)
    sealed = bytearray(sealer.seal(5, HEAD, b"hello"))
    sealed[place] ^= flip
    assert sealer.open(5, HEAD, bytes(sealed)) is None


def test_head_and_number_are_part_of_what_is_sealed() -> None:
    sealer = Sealer(SECRET, 7, from_client=True)
    sealed = sealer.seal(5, HEAD, b"hello")
    assert sealer.open(6, HEAD, sealed) is None
    assert sealer.open(5, HEAD[:-1] + b"\6", sealed) is None
    assert sealer.open(5, HEAD, sealed[:10]) is None
    assert sealer.open(5, HEAD, b"") is None


def test_numbers_and_secrets_are_bounded() -> None:
    sealer = Sealer(SECRET, 7, from_client=True)
    for number in (-1, MAX_PACKETS):
        with pytest.raises(ValueError, match="run out"):
            sealer.seal(number, HEAD, b"")
    with pytest.raises(ValueError, match="31 bytes"):
        Sealer(bytes(SECRET_SIZE - 1), 7, from_client=True)


def test_the_keys_are_those_of_the_specification() -> None:
    """A vector for other implementations"""
    sealed = Sealer(SECRET, 7, from_client=True).seal(5, HEAD, b"hello")
    assert sealed.hex() == "d81a7ef529ce90340128024f4461548c2e324e3b46"


@given(st.lists(st.integers(0, 3000), max_size=200))
def test_the_window_is_a_set_of_the_newest(numbers: list[int]) -> None:
    window, seen = ReplayWindow(), set()
    for number in numbers:
        largest = max(seen, default=-1)
        expected = number not in seen and number > largest - ReplayWindow.SIZE
        assert window.fresh(number) == expected
        if expected:
            window.note(number)
            seen.add(number)
    assert window.largest == max(seen, default=-1)
    bits = window.recent(64)
    assert bits == sum(1 << i for i in range(64) if window.largest - 1 - i in seen)
