"""Weights find their old grid again, bit by bit; what has none goes on one of 8 bits."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from node.models import grid
from node.models.grid import BLOCK, Grid


def plain(found: Grid) -> np.ndarray:
    """The weights that a grid means, as MatMulNBits reads them."""
    size, blocks = found.scales.shape
    codes, zeros = found.codes.astype(np.float32), found.zeros.astype(np.float32)
    if found.bits == 4:
        both = np.stack([found.codes & 15, found.codes >> 4], axis=-1)
        codes = both.reshape(size, blocks, BLOCK).astype(np.float32)
        zeros = np.stack([found.zeros & 15, found.zeros >> 4], axis=-1).reshape(size, -1)[:, :blocks].astype(np.float32)
    whole = (codes - zeros[..., None]) * found.scales[..., None]
    if found.rest is not None:
        whole = whole + found.rest[..., None]
    return whole.reshape(size, -1)


def q4_1(rng: np.random.Generator, size: int, blocks: int) -> np.ndarray:
    """Weights as llama.cpp's Q4_1 holds them: scale and minimum a block, 16 steps."""
    scale = rng.uniform(0.001, 0.1, (size, blocks, 1)).astype(np.float16).astype(np.float32)
    low = rng.uniform(-1, 0.2, (size, blocks, 1)).astype(np.float16).astype(np.float32)
    codes = rng.integers(0, 16, (size, blocks, BLOCK))
    return (codes * scale + low).astype(np.float32).reshape(size, -1)


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 4))
def test_four_bits_come_back_as_they_were(seed: int, size: int, blocks: int) -> None:
    weights = q4_1(np.random.default_rng(seed), size, blocks)
    found = grid.find(weights)
    assert found.bits == 4
    assert np.abs(plain(found) - weights).max() < 1e-4 * np.abs(weights).max()
    assert found.rest is not None
    # Beyond the whole zero point only less than a step is left, unless the grid does not reach zero at all.
    inside = (weights.reshape(size, blocks, BLOCK).min(2) <= 0) & (weights.reshape(size, blocks, BLOCK).max(2) >= 0)
    assert (np.abs(found.rest) <= 0.51 * found.scales)[inside].all()


def test_a_symmetric_grid_and_a_constant_block() -> None:
    rng = np.random.default_rng(1)
    weights = (rng.integers(-8, 8, (3, 64)) * 0.05).astype(np.float32)  # Q4_0
    weights[1, :32] = 0.25
    weights[2, :32] = 0
    found = grid.find(weights)
    assert found.bits == 4
    assert np.allclose(plain(found), weights, atol=1e-6)


def test_what_has_no_grid_goes_on_eight_bits() -> None:
    weights = np.random.default_rng(2).normal(size=(4, 96)).astype(np.float32)
    found = grid.find(weights)
    assert found.bits == 8
    assert found.rest is None
    step = np.abs(weights.reshape(4, 3, BLOCK)).max(2) / 127
    assert (np.abs(plain(found) - weights).reshape(4, 3, BLOCK).max(2) <= 0.501 * step).all()


def test_eight_bits_come_back_as_they_were() -> None:
    codes = np.random.default_rng(3).integers(-127, 128, (4, 64)).astype(np.float32)
    codes[:, ::BLOCK] = 127  # as Q8_0 has in every block
    weights = codes * np.float32(0.01)
    assert np.allclose(plain(grid.eight_bits(weights)), weights, atol=1e-7)
    assert not plain(grid.eight_bits(np.zeros((1, 32), np.float32))).any()


def test_an_odd_number_of_zeros_is_filled_up() -> None:
    found = grid.find(q4_1(np.random.default_rng(4), 2, 3))
    assert found.zeros.shape == (2, 2)
    assert found.codes.shape == (2, 3, 16)
