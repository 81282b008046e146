"""Rows of the cache: each keeps its own, and gives its memory back."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from node.engine.kvrows import HostRows, Shape, no_memory

SHAPE = Shape(layers=2, rows=3, heads=2, tokens=600, size=8, type="float32")


def fill(rows: HostRows, row: int, value: float, tokens: int) -> None:
    rows.restore(row, np.full((4, 2, tokens, 8), value, np.float32))


def test_what_is_saved_can_be_restored_elsewhere() -> None:
    rows = HostRows(SHAPE)
    cells = np.random.default_rng(1).normal(size=(4, 2, 5, 8)).astype(np.float32)
    rows.restore(1, cells)
    saved = rows.save(1, 5)
    rows.restore(1, np.zeros_like(cells))
    assert np.array_equal(saved, cells), "a copy of its own"
    rows.restore(2, saved)
    assert np.array_equal(rows.save(2, 5), cells)
    assert not rows.save(0, 5).any()


def test_a_row_moves_and_its_neighbours_stay() -> None:
    rows = HostRows(SHAPE)
    for row in range(3):
        fill(rows, row, row + 1.0, 7)
    rows.move(2, 0, 7)
    assert [rows.save(row, 7).mean() for row in range(3)] == [3.0, 2.0, 3.0]


def test_addresses_are_where_the_numbers_are() -> None:
    rows = HostRows(SHAPE)
    fill(rows, 2, 5.0, 3)
    for layer in range(2):
        for kind in (0, 1):
            first = ctypes.cast(rows.pointer(layer, kind, 2), ctypes.POINTER(ctypes.c_float))
            assert first[0] == 5.0
            assert rows.pointer(layer, kind, 1) - rows.pointer(layer, kind, 0) == SHAPE.row_bytes


def test_clearing_leaves_the_neighbours_alone() -> None:
    rows = HostRows(SHAPE)
    for row in range(3):
        fill(rows, row, row + 1.0, 600)
    rows.clear(1)
    assert rows.save(0, 600).min() == 1.0
    assert rows.save(2, 600).min() == 3.0
    assert rows.save(1, 600).min() == 0.0


def test_an_unused_cache_costs_no_memory_and_a_cleared_row_gives_it_back() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    shape = Shape(layers=4, rows=4, heads=4, tokens=16_384, size=64, type="float32")  # 2 GiB
    before = resident()
    rows = HostRows(shape)
    assert resident() - before < 16 << 20
    rows.restore(1, np.ones((8, 4, 4096, 64), np.float32))
    assert resident() - before > 30 << 20
    rows.clear(1)
    assert resident() - before < 16 << 20


def test_too_large_a_cache_is_an_error_with_the_numbers() -> None:
    with pytest.raises(Exception, match=r"100 x 1,000 tokens \(2 MB\)"):
        raise no_memory(Shape(1, 100, 1, 1000, 5, "float16"))
    with pytest.raises(Exception, match="not enough memory"):
        HostRows(Shape(1, 1 << 20, 1, 1 << 20, 1 << 15, "float32"))  # more than there are addresses
