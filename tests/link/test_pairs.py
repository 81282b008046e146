"""Two packets in the bytes of one: each half gives the other, whatever was lost, and nonsense is one LinkError."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import LinkError
from node.link.packet import Data, row, words_in
from node.link.pairs import Pair, pair_in, parity, solve

words = st.lists(st.binary(max_size=15), min_size=1, max_size=15)


@given(words, st.integers(0, 20))
def test_rows_there_and_back(some: list[bytes], zeros: int) -> None:
    assert words_in(row(some) + bytes(zeros), len(some)) == some


@given(words, words)
def test_each_half_gives_the_other(older: list[bytes], newer: list[bytes]) -> None:
    pair = pair_in(Data(0, 0, [b""], len(older), len(newer), parity(older, newer)), 100)
    assert pair.older.stop == pair.newer.start
    assert pair.newer.stop == 100
    first, second = dict(zip(pair.older, older, strict=True)), dict(zip(pair.newer, newer, strict=True))
    assert pair.solve(first) == second
    assert pair.solve(second) == first
    assert pair.solve(first | second) == {}
    assert pair.solve({}) == {}


def test_what_is_known_is_not_found_again() -> None:
    """The receiver counts what was found as repaired."""
    pair = Pair(range(0, 1), range(1, 3), parity([b"one"], [b"two", b"three"]))
    assert pair.solve({0: b"one", 1: b"two"}) == {2: b"three"}


def test_two_packets_in_a_row_are_repaired_by_the_next_two() -> None:
    groups = [[b"one"], [b"two", b"three"], [b"four"], [b""]]
    starts = [0, 1, 3, 4]
    pairs = [
        Pair(range(starts[i], starts[i + 1]), range(starts[i + 1], starts[i + 1] + len(groups[i + 1])), told)
        for i, told in ((1, parity(groups[1], groups[2])), (2, parity(groups[2], groups[3])))
    ]
    assert solve(pairs[:1], {0: b"one"}) == {}
    assert solve(pairs, {0: b"one", 4: b""}) == {1: b"two", 2: b"three", 3: b"four"}


@pytest.mark.parametrize("known", [b"another word", bytes(16), bytes(300)])
def test_a_pair_that_contradicts_what_is_known_is_a_link_error(known: bytes) -> None:
    pair = Pair(range(0, 1), range(1, 2), parity([b"abc"], [b"de"]))
    with pytest.raises(LinkError):
        pair.solve({0: known})


@given(st.binary(max_size=40), st.integers(1, 15))
def test_noise_is_a_row_or_one_link_error(noise: bytes, count: int) -> None:
    try:
        assert len(words_in(noise, count)) == count
    except LinkError:
        pass
