"""A loaded model and its main context."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from node.engine import seats
from node.engine.context import STATES, Context, NoMemory, Shape
from node.engine.library import llama
from node.engine.vocabulary import Vocabulary
from node.errors import ModelFileError
from node.machine.cpu import usable_cores
from node.settings import Engine as EngineSettings


class Decoder:
    """A model in memory; `context` is where requests run. Not thread-safe, but for `vocabulary`."""

    def __init__(self, settings: EngineSettings, weights: Path) -> None:
        self._llama = llama()
        self._settings = settings
        self._model = self._load(weights)
        self._context: Context | None = None
        try:
            self.trained_context: int = self._llama.llama_model_n_ctx_train(self._model)
            self.context_size = min(settings.context or self.trained_context, self.trained_context)
            self.threads = settings.threads or usable_cores()
            cells = max(settings.kv_tokens, self.context_size)
            sequences = seats.sequences(settings.slots)
            self._context = self.open_context(cells, sequences, settings.slots + STATES, self.threads)
        except NoMemory as error:
            self.close()
            raise ModelFileError(
                f"There is not enough memory for {weights.name} with a cache of {cells} tokens.",
                hint="Lower engine.kv_tokens, or set engine.kv_type to q8_0.",
            ) from error
        except BaseException:
            self.close()
            raise
        self.vocabulary = Vocabulary(self._llama.llama_model_get_vocab(self._model))

    @property
    def context(self) -> Context:
        """Where requests run."""
        assert self._context is not None, "the decoder is closed"
        return self._context

    @property
    def offloads(self) -> bool:
        """Whether layers run on a GPU."""
        return bool(self._settings.gpu_layers and self._llama.llama_supports_gpu_offload())

    @property
    def can_be_cut(self) -> bool:
        """Whether a sequence in the cache may lose its end, or share its beginning, at any token."""
        plain = {self._llama.LLAMA_ROPE_TYPE_NONE, self._llama.LLAMA_ROPE_TYPE_NORM, self._llama.LLAMA_ROPE_TYPE_NEOX}
        return not (
            self._llama.llama_model_is_recurrent(self._model)
            or self._llama.llama_model_is_hybrid(self._model)
            or self._llama.llama_model_n_swa(self._model) > 0
            or self._llama.llama_model_rope_type(self._model) not in plain
        )

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

    def open_context(self, cells: int, sequences: int, outputs: int, threads: int) -> Context:
        """One more context of this model; raises NoMemory."""
        own, pooled = self._settings, self.pooling != "none"
        sizes = own.batch, own.ubatch or own.batch
        return Context(
            self._model, Shape(cells, sequences, outputs, threads, own.kv_type, pooled, own.flash_attention, *sizes)
        )

    def close(self) -> None:
        """Free context and model; safe to call twice. Other contexts must be closed before."""
        if self._context is not None:
            self._context.close()
            self._context = None
        if self._model is not None:
            self._llama.llama_model_free(self._model)
            self._model = None

    def _metadata(self, key: str) -> str:
        buffer = ctypes.create_string_buffer(256)
        count = self._llama.llama_model_meta_val_str(self._model, key.encode(), buffer, len(buffer))
        return buffer.value.decode(errors="replace") if count >= 0 else ""

    def _load(self, weights: Path) -> Any:
        params = self._llama.llama_model_default_params()
        params.n_gpu_layers = self._settings.gpu_layers
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


@contextlib.contextmanager
def closing_on_error(decoder: Decoder) -> Iterator[None]:
    """Free the decoder when what is built on it fails."""
    try:
        yield
    except BaseException:
        decoder.close()
        raise
