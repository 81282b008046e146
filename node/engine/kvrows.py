"""The KV cache of an ONNX model: one row a sequence, in memory that the graph reads and writes in place.

    cells[layer, key or value][row, head, token, size]

All of a row's tokens have their place from the beginning, so that nothing is moved while a sequence grows. On the CPU
the place is only promised by the system until a token is written, and given back when its row is cleared.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from node.engine import onnx_library
from node.errors import ModelFileError

Cells = npt.NDArray[Any]

_NORESERVE = 0x4000  # MAP_NORESERVE, the same on all Linux; Python has no name for it before 3.13
_KINDS = 2  # keys and values


@dataclass(frozen=True, slots=True)
class Shape:
    """`rows` sequences of up to `tokens` tokens each; `type` is numpy's name for the number format."""

    layers: int
    rows: int
    heads: int
    tokens: int
    size: int
    type: str

    @property
    def all(self) -> tuple[int, ...]:
        return (self.layers * _KINDS, self.rows, self.heads, self.tokens, self.size)

    @property
    def row_bytes(self) -> int:
        """Of one row in one layer, keys or values alone."""
        return self.heads * self.tokens * self.size * np.dtype(self.type).itemsize

    @property
    def bytes(self) -> int:
        return self.layers * _KINDS * self.rows * self.row_bytes


class Rows(Protocol):
    """A cache in some memory; `device` is ONNX Runtime's name for it. Not thread-safe."""

    shape: Shape
    device: str

    def pointer(self, layer: int, kind: int, row: int) -> int:
        """Where a row of one layer begins; `kind` 0 is keys, 1 values. The next row follows it."""

    def move(self, source: int, target: int, tokens: int) -> None:
        """Copy the first tokens of one row into another."""

    def save(self, row: int, tokens: int) -> Cells:
        """The first tokens of a row, as an array of their own outside of the cache."""

    def restore(self, row: int, cells: Cells) -> None:
        """Write what `save` gave into a row."""

    def clear(self, row: int) -> None:
        """Forget what is in a row."""


class HostRows:
    """See `Rows`; in the process's own memory."""

    device = "cpu"

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        try:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
            self._memory = mmap.mmap(-1, shape.bytes, flags=flags)
        except (OSError, OverflowError) as error:
            raise no_memory(shape) from error
        self._cells: Cells = np.frombuffer(self._memory, shape.type).reshape(shape.all)
        self._base = self._cells.ctypes.data

    def pointer(self, layer: int, kind: int, row: int) -> int:
        return self._base + self._offset(layer * _KINDS + kind, row)

    def move(self, source: int, target: int, tokens: int) -> None:
        self._cells[:, target, :, :tokens] = self._cells[:, source, :, :tokens]

    def save(self, row: int, tokens: int) -> Cells:
        return self._cells[:, row, :, :tokens].copy()

    def restore(self, row: int, cells: Cells) -> None:
        self._cells[:, row, :, : cells.shape[2]] = cells

    def clear(self, row: int) -> None:
        """Give the whole pages back; their bytes at both ends stay, and nobody reads them."""
        for plane in range(self.shape.all[0]):
            start = -(-self._offset(plane, row) // mmap.PAGESIZE) * mmap.PAGESIZE
            end = self._offset(plane, row + 1) // mmap.PAGESIZE * mmap.PAGESIZE
            if start < end:
                self._memory.madvise(mmap.MADV_DONTNEED, start, end - start)

    def _offset(self, plane: int, row: int) -> int:
        return (plane * self.shape.rows + row) * self.shape.row_bytes


class CudaRows:
    """See `Rows`; on a CUDA device, copied by CUDA's own runtime, which ONNX Runtime has loaded already."""

    device = "cuda"

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        library = onnx_library.onnxruntime()
        try:
            self._value = library.OrtValue.ortvalue_from_shape_and_type(shape.all, np.dtype(shape.type), "cuda", 0)
        except onnx_library.errors() as error:
            raise no_memory(shape) from error
        self._base = int(self._value.data_ptr())
        self._copy = _cuda_copy()

    def pointer(self, layer: int, kind: int, row: int) -> int:
        return self._base + self._offset(layer * _KINDS + kind, row)

    def move(self, source: int, target: int, tokens: int) -> None:
        pitch, width = self._widths(tokens)
        for plane in range(self.shape.all[0]):
            there, here = self._base + self._offset(plane, target), self._base + self._offset(plane, source)
            self._copy(there, pitch, here, pitch, width, self.shape.heads)

    def save(self, row: int, tokens: int) -> Cells:
        planes, _, heads, _, size = self.shape.all
        saved = np.empty((planes, heads, tokens, size), self.shape.type)
        pitch, width = self._widths(tokens)
        for plane in range(planes):
            self._copy(saved[plane].ctypes.data, width, self._base + self._offset(plane, row), pitch, width, heads)
        return saved

    def restore(self, row: int, cells: Cells) -> None:
        pitch, width = self._widths(cells.shape[2])
        for plane in range(self.shape.all[0]):
            there = self._base + self._offset(plane, row)
            self._copy(there, pitch, cells[plane].ctypes.data, width, width, self.shape.heads)

    def clear(self, row: int) -> None:
        """Nothing to give back: the device's memory was taken whole."""

    def _widths(self, tokens: int) -> tuple[int, int]:
        """Bytes of one head's place in a row, and of so many tokens in it."""
        token = self.shape.size * np.dtype(self.shape.type).itemsize
        return self.shape.tokens * token, tokens * token

    def _offset(self, plane: int, row: int) -> int:
        return (plane * self.shape.rows + row) * self.shape.row_bytes


def no_memory(shape: Shape) -> ModelFileError:
    """The error for a cache that does not fit."""
    return ModelFileError(
        f"There is not enough memory for a cache of {shape.rows} x {shape.tokens:,} tokens "
        f"({shape.bytes / 1e6:,.0f} MB).",
        hint="Lower engine.slots or engine.context.",
    )


def _cuda_copy() -> Any:
    """cudaMemcpy2D(target, its pitch, source, its pitch, width, height) in whatever direction; raises on errors."""
    for name in ("libcudart.so.13", "libcudart.so.12", "libcudart.so"):
        with contextlib.suppress(OSError):
            function = ctypes.CDLL(name).cudaMemcpy2D
            break
    else:
        raise ModelFileError("CUDA's runtime library (libcudart) cannot be loaded.", hint="Install CUDA 13.")
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    function.argtypes = [pointer, size, pointer, size, size, size, ctypes.c_int]
    default_direction = 4  # cudaMemcpyDefault: taken from the pointers

    def copy(*arguments: int) -> None:
        if status := function(*arguments, default_direction):
            raise RuntimeError(f"cudaMemcpy2D failed with status {status}")

    return copy
