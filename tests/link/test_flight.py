"""Flights: any part of the shards that is large enough gives them all."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.errors import LinkError
from node.link.flight import MAX_FLIGHT, join, parity_for, shards


@settings(max_examples=80)
@given(st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=MAX_FLIGHT), st.integers(0, 8), st.data())
def test_any_data_many_shards_give_them_all(rows: list[bytes], parity: int, data: st.DataObject) -> None:
    pieces = shards(rows, parity)
    size = max(map(len, rows))
    assert [piece[:size] for piece in pieces[: len(rows)]] == [row.ljust(size, b"\0") for row in rows]
    came = data.draw(st.permutations(range(len(pieces))))[: len(rows)]
    whole = join({index: pieces[index] for index in came}, len(rows))
    assert whole == dict(enumerate(pieces[: len(rows)]))


def test_too_few_or_contradicting_shards_are_refused() -> None:
    pieces = shards([b"one", b"two", b"three"], 1)
    with pytest.raises(LinkError):
        join({0: pieces[0], 3: pieces[3]}, 3)
    with pytest.raises(LinkError):
        join({0: pieces[0], 1: pieces[1], 3: b"\xff" * len(pieces[3])}, 3)


def test_the_parity_is_the_least_that_suffices() -> None:
    """The table of the design: k = 8 needs 2, 3, 4, 5 at 2, 5, 8, 10 %."""
    assert [parity_for(8, loss) for loss in (0.02, 0.05, 0.08, 0.10)] == [2, 3, 4, 5]
    assert parity_for(1, 0.0) >= 0
    assert parity_for(MAX_FLIGHT, 1.0) <= MAX_FLIGHT
