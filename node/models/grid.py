"""The grid that quantized numbers lie on, found again in the plain numbers that they became.

llama.cpp's formats give each block of 32 weights a scale and an offset: w = scale · q + offset. Quantizing such weights
anew, on another grid, loses quality a second time (measured on the default model: int4 by rounding to nearest keeps the
first six tokens of 10 of 24 answers, its own grid those of 21). Where the old grid is found, nothing is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 32
_TOLERANCE = 1e-3  # of a step of the grid

Numbers = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Grid:
    """Weights `[n, k]` as ONNX's MatMulNBits takes them: w = scale · (q - zero) + rest, in blocks of 32 along k.

    `codes` are `[n, blocks, bytes]`, `scales` and `rest` `[n, blocks]`, `zeros` `[n, bytes]`; `rest` is None where it
    is nothing.
    """

    bits: int
    codes: Bytes
    scales: Numbers
    zeros: Bytes
    rest: Numbers | None


def find(weights: Numbers) -> Grid:
    """The weights on their own 4-bit grid where they have one, else on one of 8 bits. k must be a multiple of 32."""
    blocks = weights.reshape(len(weights), -1, BLOCK)
    return _four_bits(blocks) or eight_bits(weights)


def eight_bits(weights: Numbers) -> Grid:
    """Symmetric, the largest weight of a block at 127: exactly the grid of Q8_0, and near to any other."""
    blocks = weights.reshape(len(weights), -1, BLOCK)
    scales = _not_zero(np.abs(blocks).max(axis=2) / 127)
    codes = (np.rint(blocks / scales[..., None]) + 128).astype(np.uint8)
    return Grid(8, codes, scales, np.full(scales.shape, 128, np.uint8), None)


def _four_bits(blocks: Numbers) -> Grid | None:
    """A grid of at most 16 steps that every weight lies on; blocks that do not use all of them have fewer."""
    low, high = blocks.min(axis=2), blocks.max(axis=2)
    scales = np.zeros_like(low)
    open_ = np.ones(low.shape, bool)
    for steps in range(15, 0, -1):
        step = _not_zero((high - low) / steps)
        place = (blocks - low[..., None]) / step[..., None]
        fits = open_ & (np.abs(place - np.rint(place)).max(axis=2) < _TOLERANCE)
        scales[fits] = step[fits]
        open_ &= ~fits
        if not open_.any():
            break
    if open_.any():
        return None
    codes = np.rint((blocks - low[..., None]) / scales[..., None]).astype(np.uint8)
    zeros = np.clip(np.rint(-low / scales), 0, 15).astype(np.uint8)
    return Grid(4, _pairs(codes), scales, _pairs(zeros), low + scales * zeros)


def _not_zero(scales: Any) -> Numbers:
    """A block of nothing but one value has no step; any will do."""
    return np.where(scales > 0, scales, 1).astype(np.float32)


def _pairs(codes: Bytes) -> Bytes:
    """Two codes a byte along the last axis, the first in the low half."""
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros_like(codes[..., :1])], axis=-1)
    return np.asarray(codes[..., 0::2] | (codes[..., 1::2] << 4), np.uint8)
