"""How much memory a node will take with a model, computed from the model's header and the engine's settings.

    weights    the file, which llama.cpp maps into memory
    packed     a second copy of the matrices for whose type there is a faster layout on this processor
    cache      keys and values:  cells x width x bytes of the number format
    buffers    what a batch computes with: activations of the widest layer and a mask of cells x batch, or output rows
               of the vocabulary, or without flash attention scores of cells x batch x heads; and the output itself
    long       a long prompt that is read beside answers has a cache and buffers of its own (`engine.aside`)
    warm       what is kept of prompts outside the cache (`prewarm`), up to its limit
    program    Python, the libraries, and what is kept for each token of the vocabulary

It is what the process takes at its busiest: cache full, a batch full, embeddings and structured answers asked for.
`outpost bench memory` compares it with what a node really takes. With layers on a GPU, weights and cache are there in
proportion; that part is computed but was never measured.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from node.engine import seats
from node.engine.context import STATES
from node.models.gguf import Summary
from node.settings import Engine, Settings

Gpu = Literal["none", "own", "shared"]
MIB = 1 << 20
_FLOAT, _HALF = 4, 2
_CELLS_STEP = 256  # llama.cpp rounds a context's cells up
# Bytes of so many numbers in the KV cache: blocks as in gguf.TYPES.
_KV_BLOCKS = {"f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "q8_0": (32, 34), "q5_1": (32, 24), "q4_0": (32, 18)}
# Types that get a second copy, by the feature that its layout is made for (ggml-cpu: amx.cpp, get_optimal_repack_type).
_PACKED = {
    "amx": {"Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "F16"},
    "avx2": {"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"},
    "avx512f": {"Q2_K"},
    "dotprod": {"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4", "Q1_0"},
}
# Fitted to nodes with vocabularies of 49,000 and 152,000 tokens; `outpost bench memory` shows whether they still hold.
_PROGRAM = 95 * MIB
_PROGRAM_TOKEN = 650
_AMX_Q8_0 = 38 / 34  # a sum more for every block
_ASIDE_COPIES = 3  # its cache, and two copies while it is taken out


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the memory, and what it was computed from."""

    name: str
    bytes: int
    detail: str = ""

    def times(self, share: float) -> Part:
        """That share of it."""
        return replace(self, bytes=round(self.bytes * share))


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a node takes in the machine's memory, and in a GPU's own."""

    parts: tuple[Part, ...]
    gpu: tuple[Part, ...] = ()

    @property
    def total(self) -> int:
        """Bytes of the machine's memory."""
        return sum(part.bytes for part in self.parts)

    @property
    def gpu_total(self) -> int:
        """Bytes of the GPU's memory."""
        return sum(part.bytes for part in self.gpu)


def footprint(
    model: Summary, settings: Settings, threads: int, features: Collection[str], gpu: Gpu = "none"
) -> Footprint:
    """For llama.cpp; `threads` decode, `features` are the processor's, `gpu` is whose memory a GPU's layers lie in."""
    engine, prewarm = settings.engine, settings.prewarm
    trained = model.context_length or engine.context
    context = min(engine.context or trained, trained)
    cells = _cells(max(engine.kv_tokens, context))
    share = 0.0 if gpu == "none" else _share(engine.gpu_layers, model.shape.layers)
    weights = Part("weights", model.shape.tensor_bytes, model.quantization)
    cache = Part("KV cache", _cache(model, engine, cells), f"{cells:,} tokens in {engine.kv_type}")
    sequences = seats.sequences(engine.slots) + seats.SPARE
    buffers = _buffers(model, engine, cells, sequences, engine.slots + STATES)
    work = Part("buffers", buffers, f"{engine.slots} slots")
    packed = _packed(model.shape.matrices, features)
    aside = _aside(model, engine, _cells(context)) if threads >= 2 and not share else 0
    own = share if gpu == "own" else 0.0
    parts = (
        weights.times(1 - own),
        Part("packed copy", packed, "for this processor").times(1 - share),
        cache.times(1 - own),
        work,
        Part("a long prompt", aside, f"up to {context:,} tokens, beside answers"),
        Part("warm prefixes", (prewarm.memory_bytes + prewarm.history_bytes) * prewarm.enabled, "at most"),
        Part("program", _PROGRAM + _PROGRAM_TOKEN * model.vocabulary, f"{model.vocabulary:,} tokens"),
    )
    on_gpu = (weights.times(own), cache.times(own), work.times(float(own > 0)))
    return Footprint(*(tuple(part for part in side if part.bytes) for side in (parts, on_gpu)))


def packed_types(features: Collection[str]) -> frozenset[str]:
    """The types that llama.cpp keeps a second copy of on a processor with these features."""
    return frozenset[str]().union(*(kinds for feature, kinds in _PACKED.items() if feature in features))


def _packed(matrices: Mapping[str, int], features: Collection[str]) -> int:
    types, larger = packed_types(features), {"Q8_0": _AMX_Q8_0} if "amx" in features else {}
    return round(sum(size * larger.get(kind, 1) for kind, size in matrices.items() if kind in types))


def _share(gpu_layers: int, layers: int) -> float:
    """How much of the model lies on the GPU; the output counts as a layer."""
    return 1.0 if gpu_layers < 0 else min(1.0, gpu_layers / (layers + 1))


def _cells(tokens: int) -> int:
    return -(-tokens // _CELLS_STEP) * _CELLS_STEP


def _cache(model: Summary, engine: Engine, cells: int) -> int:
    block, size = _KV_BLOCKS[engine.kv_type]
    return cells * model.shape.kv_width * size // block


def _aside(model: Summary, engine: Engine, cells: int) -> int:
    return _ASIDE_COPIES * _cache(model, engine, cells) + _buffers(model, engine, cells, seats.SPARE + 1, outputs=1)


def _buffers(model: Summary, engine: Engine, cells: int, sequences: int, outputs: int) -> int:
    """What llama.cpp reserves for a batch, its output, and a batch's rows quantized for products."""
    shape = model.shape
    outputs = max(outputs, sequences)
    tokens = min(engine.ubatch or engine.batch, cells)
    rows = -(-tokens // sequences) * sequences  # llama.cpp rounds a batch up to a multiple of the sequences
    wide = rows * (3 * shape.feed_forward + 4 * shape.embedding) * _FLOAT + cells * rows * _HALF
    scores = (cells * shape.heads + 6 * shape.embedding + cells) * rows * _FLOAT
    last = (outputs * model.vocabulary + (outputs + rows) * shape.embedding) * _FLOAT
    working = max(wide, last, scores if engine.flash_attention == "off" else 0)
    output = outputs * (model.vocabulary + shape.embedding) * _FLOAT
    products = tokens * max(shape.feed_forward, shape.embedding) * 9 // 8
    return working + output + products
