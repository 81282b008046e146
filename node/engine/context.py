"""A llama.cpp context behind few verbs: decode a batch, read logits and states, move and forget sequences.

One unified KV cache holds all of a context's sequences, so that they share its cells and one decode call serves them.

llama.cpp moves the state of whole sequences only. But a sequence may hold any positions, so that a part of one is moved
by way of a sequence that nothing runs in: what a longer prefix adds to a shorter one can be stored by itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from node.engine import seats
from node.engine.library import llama
from node.errors import EngineFailed

BATCH = 512  # most tokens of one step, unless settings say otherwise
STATES = 64  # most tokens of one step whose hidden state is read (embeddings)

_FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}  # llama_flash_attn_type

Floats = npt.NDArray[np.float32]


class Part(NamedTuple):
    """Consecutive tokens of one sequence; the last `outputs` of them give logits."""

    slot: int
    position: int
    ids: npt.NDArray[np.int32]
    outputs: int


class CacheFull(Exception):
    """A signal to the engine: the cache found no cells for the batch; nothing of it was decoded."""


class NoMemory(Exception):
    """llama.cpp could not make the context."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How big a context is: cells of its cache, sequences, tokens of a batch that may give output, threads."""

    cells: int
    sequences: int
    outputs: int
    threads: int
    kv_type: str = "f16"
    pooled: bool = False  # the model would pool states by itself; we do, over chunks
    flash_attention: str = "auto"
    batch: int = BATCH  # tokens of a step
    ubatch: int = BATCH  # tokens that are computed together


class Context:
    """One context of a loaded model. Not thread-safe; two contexts of one model may work at the same time."""

    def __init__(self, model: Any, shape: Shape) -> None:
        self._llama = llama()
        self._handle = _open(self._llama, model, shape)
        self._memory = self._llama.llama_get_memory(self._handle)
        self._batch = _Batch(self._llama, shape.sequences + seats.SPARE, shape.batch)
        self.spare_slot, self._passage = range(shape.sequences, shape.sequences + seats.SPARE)
        self._buffer = (ctypes.c_uint8 * 0)()
        self._reads_states = False
        self.cells: int = self._llama.llama_n_ctx(self._handle)  # llama.cpp rounds up
        self.vocabulary_size: int = self._llama.llama_vocab_n_tokens(self._llama.llama_model_get_vocab(model))
        self.state_size: int = self._llama.llama_model_n_embd_out(model)
        self.threads = shape.threads
        self.batch = shape.batch

    def use_threads(self, threads: int) -> None:
        """How many CPU threads decode from now on."""
        if threads != self.threads:
            self._llama.llama_set_n_threads(self._handle, threads, threads)
            self.threads = threads

    def decode(self, parts: Sequence[Part], *, states: bool = False) -> None:
        """Decode `parts` in one call; with `states` every token gives output, and hidden states are read.

        Raises CacheFull, or EngineFailed after which every sequence must be forgotten.
        """
        if states != self._reads_states:
            self._llama.llama_set_embeddings(self._handle, states)
            self._reads_states = states
        code = self._llama.llama_decode(self._handle, self._batch.fill(parts, states))
        if code == 1:
            raise CacheFull
        if code != 0:
            raise EngineFailed(f"llama.cpp could not decode a batch (code {code}).")

    def logits(self, index: int) -> Floats:
        """A writable view of the logits at batch position `index`; float32 of the vocabulary's size."""
        pointer = self._llama.llama_get_logits_ith(self._handle, index)
        return np.ctypeslib.as_array(pointer, shape=(self.vocabulary_size,))

    def state(self, index: int) -> Floats:
        """A copy of the hidden state at batch position `index`; float32 of `state_size`."""
        pointer = self._llama.llama_get_embeddings_ith(self._handle, index)
        return np.ctypeslib.as_array(pointer, shape=(self.state_size,)).copy()

    @property
    def handle(self) -> Any:
        """llama.cpp's pointer, for samplers."""
        return self._handle

    def take(self, slot: int, start: int, end: int) -> bytes:
        """A copy of what the cache holds of a sequence's tokens from `start` up to `end`."""
        self._llama.llama_memory_seq_cp(self._memory, slot, self._passage, start, end)
        try:
            size = self._llama.llama_state_seq_get_size(self._handle, self._passage)
            if size > len(self._buffer):  # kept, because the pages of a new one cost more than the copy
                self._buffer = (ctypes.c_uint8 * size)()
            if not self._llama.llama_state_seq_get_data(self._handle, self._buffer, size, self._passage):
                raise EngineFailed("llama.cpp could not copy a sequence's state.")
        finally:
            self.forget(self._passage)
        return bytes(memoryview(self._buffer)[:size])

    def give(self, slot: int, data: bytes) -> None:
        """Give a sequence tokens that `take` took, at their old positions; raises CacheFull where there is no room."""
        pointer = ctypes.cast(ctypes.c_char_p(data), ctypes.POINTER(ctypes.c_uint8))
        if self._llama.llama_state_seq_set_data(self._handle, pointer, len(data), self._passage) == 0:
            raise CacheFull
        self._llama.llama_memory_seq_cp(self._memory, self._passage, slot, -1, -1)
        self.forget(self._passage)

    def share(self, source: int, slot: int, tokens: int) -> None:
        """Let `slot` begin with the first `tokens` of `source`, in the same cells."""
        self._llama.llama_memory_seq_cp(self._memory, source, slot, 0, tokens)

    def trim(self, slot: int, tokens: int) -> None:
        """Free the cells of a sequence after its first `tokens`."""
        self._llama.llama_memory_seq_rm(self._memory, slot, tokens, -1)

    def forget(self, slot: int) -> None:
        """Free all cells of one sequence."""
        self._llama.llama_memory_seq_rm(self._memory, slot, -1, -1)

    def forget_all(self) -> None:
        """Free every cell."""
        self._llama.llama_memory_clear(self._memory, True)

    def close(self) -> None:
        """Free the context; safe to call twice."""
        if self._handle is not None:
            self._llama.llama_free(self._handle)
            self._handle = None


def _open(library: Any, model: Any, shape: Shape) -> Any:
    params = library.llama_context_default_params()
    params.n_ctx = shape.cells
    params.n_batch, params.n_ubatch = shape.batch, shape.ubatch
    params.n_seq_max = shape.sequences + seats.SPARE
    # The default reserves logits for every token of a batch; llama.cpp wants at least one a sequence.
    params.n_outputs_max = max(shape.outputs, params.n_seq_max)
    params.n_threads = params.n_threads_batch = shape.threads
    params.kv_unified = True
    if shape.pooled:
        params.pooling_type = library.LLAMA_POOLING_TYPE_NONE
    params.type_k = params.type_v = getattr(library, f"GGML_TYPE_{shape.kv_type.upper()}")
    params.flash_attn_type = _FLASH_ATTENTION[shape.flash_attention]
    params.no_perf = True
    handle = library.llama_init_from_model(model, params)
    if not handle:
        raise NoMemory
    return handle


class _Batch:
    """Arrays that llama.cpp reads a batch from; filled in place each step."""

    def __init__(self, library: Any, sequences: int, size: int) -> None:
        self._tokens = np.zeros(size, np.int32)
        self._positions = np.zeros(size, np.int32)
        self._counts = np.ones(size, np.int32)
        self._outputs = np.zeros(size, np.int8)
        self._slots = np.arange(sequences, dtype=np.int32)
        self._slot_pointers = np.zeros(size, np.uintp)
        self._library = library
        self._value = library.llama_batch()
        kinds = {name: kind for name, kind, *_ in library.llama_batch._fields_}
        for name, array in (
            ("token", self._tokens),
            ("pos", self._positions),
            ("n_seq_id", self._counts),
            ("seq_id", self._slot_pointers),
            ("logits", self._outputs),
        ):
            setattr(self._value, name, array.ctypes.data_as(kinds[name]))

    def fill(self, parts: Sequence[Part], all_outputs: bool) -> Any:
        at = 0
        self._outputs.fill(all_outputs)
        for part in parts:
            end = at + len(part.ids)
            self._tokens[at:end] = part.ids
            self._positions[at:end] = np.arange(part.position, part.position + len(part.ids), dtype=np.int32)
            self._slot_pointers[at:end] = self._slots.ctypes.data + part.slot * self._slots.itemsize
            self._outputs[end - part.outputs : end] = 1
            at = end
        self._value.n_tokens = at
        return self._value
