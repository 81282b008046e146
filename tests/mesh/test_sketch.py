"""Sketches: what they say of prompts, what they do not say, and that they stay small."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from node.mesh.sketch import BLOCK, MOST, digest, draw, marks, warm_tokens

KEY = b"k" * 32
SYSTEM = list(range(300))


def warm(sketch: bytes, prompt: list[int], tenant: str = "", key: bytes = KEY) -> int:
    return warm_tokens(sketch, marks(key, prompt, tenant))


def test_a_prompt_that_begins_like_a_warm_prefix() -> None:
    sketch = draw(KEY, [(None, SYSTEM)])
    assert warm(sketch, [*SYSTEM, 7, 8, 9]) == 256
    assert warm(sketch, SYSTEM[:130]) == 128
    assert warm(sketch, [*SYSTEM[:100], *range(900, 1200)]) == 64
    assert warm(sketch, [1, *SYSTEM]) == 0
    assert warm(sketch, SYSTEM[: BLOCK - 1]) == 0


def test_a_later_block_counts_only_after_the_same_beginning() -> None:
    sketch = draw(KEY, [(None, SYSTEM)])
    assert warm(sketch, SYSTEM[64:]) == 0


def test_tenants_find_their_own_and_everybodys() -> None:
    sketch = draw(KEY, [("acme", SYSTEM), (None, SYSTEM[:64])])
    assert warm(sketch, SYSTEM, "acme") == 256
    assert warm(sketch, SYSTEM, "other") == 64


def test_another_fleet_finds_nothing() -> None:
    assert warm(draw(KEY, [(None, SYSTEM)]), SYSTEM, key=b"j" * 32) == 0


def test_it_is_bounded_and_the_first_ones_count() -> None:
    many = [(None, [number, *range(2000)]) for number in range(100)]
    sketch = draw(KEY, many)
    assert len(sketch) == 4 * MOST
    assert warm(sketch, many[0][1]) == 1984
    assert warm(sketch, many[99][1]) == 0


def test_an_empty_or_damaged_sketch_says_nothing() -> None:
    assert draw(KEY, []) == b""
    assert warm(b"", SYSTEM) == 0
    assert warm(b"abc", SYSTEM) == 0


def test_digests_differ() -> None:
    assert digest(b"") != digest(b"abcd")
    assert len(digest(b"x" * 2048)) == 8


def test_fifty_sketches_are_asked_in_less_than_a_millisecond() -> None:
    sketches = [draw(KEY, [(None, [number, *SYSTEM])]) for number in range(50)]
    wanted = marks(KEY, [49, *SYSTEM], "")
    best = min(_seconds(lambda: [warm_tokens(sketch, wanted) for sketch in sketches]) for _ in range(5))
    assert best < 0.001 * 10, "ten times the promise, for a busy machine"


def _seconds(work: object) -> float:
    begun = time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - begun


@given(st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=400), st.binary(max_size=100))
def test_any_tokens_and_any_sketch(ids: list[int], sketch: bytes) -> None:
    assert warm(draw(KEY, [("t", ids)]), ids, "t") == len(ids) // BLOCK * BLOCK
    assert 0 <= warm(sketch, ids) <= len(ids)
