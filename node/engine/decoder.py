"""llama.cpp's model and context behind few verbs: load, decode a batch, read logits and states, forget a sequence.

One unified KV cache holds all sequences, so that they share its cells and one decode call serves them all.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from node.engine.hardware import usable_cores
from node.engine.library import llama
from node.engine.vocabulary import Vocabulary
from node.errors import EngineFailed, ModelFileError
from node.settings import Engine as EngineSettings

BATCH = 512  # most tokens of one step
STATES = 64  # most tokens of one step whose hidden state is read (embeddings)

Floats = npt.NDArray[np.float32]


class Part(NamedTuple):
    """Consecutive tokens of one sequence; with `output` the last of them gives logits."""

    slot: int
    position: int
    ids: npt.NDArray[np.int32]
    output: bool


class CacheFull(Exception):
    """A signal to the engine: the cache found no cells for the batch; nothing of it was decoded."""


class Decoder:
    """A loaded model with its context. Not thread-safe, but for `vocabulary`."""

    def __init__(self, settings: EngineSettings, weights: Path) -> None:
        self._llama = llama()
        self._model = self._load_model(settings, weights)
        self._context: Any = None
        try:
            self.trained_context: int = self._llama.llama_model_n_ctx_train(self._model)
            self.context_size = min(settings.context or self.trained_context, self.trained_context)
            self.cells = max(settings.kv_tokens, self.context_size)
            self._context = self._open_context(settings, weights)
        except BaseException:
            self.close()
            raise
        self.cells = self._llama.llama_n_ctx(self._context)  # llama.cpp rounds up
        self.vocabulary = Vocabulary(self._llama.llama_model_get_vocab(self._model))
        self.state_size: int = self._llama.llama_model_n_embd_out(self._model)
        self._memory = self._llama.llama_get_memory(self._context)
        self._batch = _Batch(self._llama, settings.slots)
        self._reads_states = False

    @property
    def chat_template(self) -> str | None:
        """The Jinja source in the model file, if it has one."""
        raw = self._llama.llama_model_chat_template(self._model, None)
        return raw.decode(errors="replace") if raw else None

    @property
    def pooling(self) -> str:
        """How the model file says its token states become an embedding; "none" where it does not."""
        kind = self._metadata(f"{self._metadata('general.architecture')}.pooling_type")
        return {"1": "mean", "3": "last"}.get(kind, "none")

    def _metadata(self, key: str) -> str:
        buffer = ctypes.create_string_buffer(256)
        count = self._llama.llama_model_meta_val_str(self._model, key.encode(), buffer, len(buffer))
        return buffer.value.decode(errors="replace") if count >= 0 else ""

    def decode(self, parts: Sequence[Part], *, states: bool) -> None:
        """Decode `parts` in one call; with `states` every token gives output, and hidden states are read.

        Raises CacheFull, or EngineFailed after which every sequence must be forgotten.
        """
        if states != self._reads_states:
            self._llama.llama_set_embeddings(self._context, states)
            self._reads_states = states
        code = self._llama.llama_decode(self._context, self._batch.fill(parts, states))
        if code == 1:
            raise CacheFull
        if code != 0:
            raise EngineFailed(f"llama.cpp could not decode a batch (code {code}).")

    def logits(self, index: int) -> Floats:
        """A writable view of the logits at batch position `index`; float32 of the vocabulary's size."""
        pointer = self._llama.llama_get_logits_ith(self._context, index)
        return np.ctypeslib.as_array(pointer, shape=(self.vocabulary.size,))

    def state(self, index: int) -> Floats:
        """A copy of the hidden state at batch position `index`; float32 of `state_size`."""
        pointer = self._llama.llama_get_embeddings_ith(self._context, index)
        return np.ctypeslib.as_array(pointer, shape=(self.state_size,)).copy()

    @property
    def handle(self) -> Any:
        """llama.cpp's context, for samplers."""
        return self._context

    def forget(self, slot: int) -> None:
        """Free all cells of one sequence."""
        self._llama.llama_memory_seq_rm(self._memory, slot, -1, -1)

    def forget_all(self) -> None:
        """Free every cell."""
        self._llama.llama_memory_clear(self._memory, True)

    def close(self) -> None:
        """Free context and model; safe to call twice."""
        if self._context is not None:
            self._llama.llama_free(self._context)
            self._context = None
        if self._model is not None:
            self._llama.llama_model_free(self._model)
            self._model = None

    def _load_model(self, settings: EngineSettings, weights: Path) -> Any:
        params = self._llama.llama_model_default_params()
        params.n_gpu_layers = settings.gpu_layers
        model = self._llama.llama_model_load_from_file(str(weights).encode(), params)
        if not model:
            raise ModelFileError(
                f"llama.cpp cannot load {weights.name}: the file is damaged or of a kind it does not know.",
                hint="`outpost models verify` checks the file; log.level=debug shows llama.cpp's own words.",
            )
        if self._llama.llama_model_has_encoder(model) or not self._llama.llama_model_has_decoder(model):
            self._llama.llama_model_free(model)
            raise ModelFileError(f"{weights.name} is not a text generator (it has an encoder).")
        return model

    def _open_context(self, settings: EngineSettings, weights: Path) -> Any:
        params = self._llama.llama_context_default_params()
        params.n_ctx = self.cells
        params.n_batch = params.n_ubatch = BATCH
        params.n_seq_max = settings.slots
        params.n_outputs_max = settings.slots + STATES  # the default reserves logits for every token of a batch
        params.n_threads = params.n_threads_batch = settings.threads or usable_cores()
        params.kv_unified = True
        if self.pooling != "none":
            params.pooling_type = self._llama.LLAMA_POOLING_TYPE_NONE  # pooled by us, over chunks
        params.type_k = params.type_v = getattr(self._llama, f"GGML_TYPE_{settings.kv_type.upper()}")
        params.no_perf = True
        context = self._llama.llama_init_from_model(self._model, params)
        if not context:
            raise ModelFileError(
                f"There is not enough memory for {weights.name} with a cache of {self.cells} tokens.",
                hint="Lower engine.kv_tokens, or set engine.kv_type to q8_0.",
            )
        return context


class _Batch:
    """Arrays that llama.cpp reads a batch from; filled in place each step."""

    def __init__(self, library: Any, slots: int) -> None:
        self._tokens = np.zeros(BATCH, np.int32)
        self._positions = np.zeros(BATCH, np.int32)
        self._counts = np.ones(BATCH, np.int32)
        self._outputs = np.zeros(BATCH, np.int8)
        self._slots = np.arange(slots, dtype=np.int32)
        self._slot_pointers = np.zeros(BATCH, np.uintp)
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
            if part.output:
                self._outputs[end - 1] = 1
            at = end
        self._value.n_tokens = at
        return self._value


@contextlib.contextmanager
def closing_on_error(decoder: Decoder) -> Iterator[None]:
    """Free the decoder when what is built on it fails."""
    try:
        yield
    except BaseException:
        decoder.close()
        raise
