"""What a model's header says about the memory that the model will need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_MAX_LAYERS = 4096

Value = str | int | float | bool | tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of the header; `row` is its first dimension, `size` its bytes, None for a type that is not known."""

    name: str
    type: str
    row: int
    elements: int
    offset: int
    size: int | None


@dataclass(frozen=True, slots=True)
class Shape:
    """Layers, a layer's heads; numbers of a token's state, of the widest layer, of all layers' KV cache.

    `matrices` has the bytes of the matrices that are multiplied with, by type. What the header does not say is 0.
    """

    layers: int = 0
    heads: int = 0
    embedding: int = 0
    feed_forward: int = 0
    kv_width: int = 0
    tensor_bytes: int = 0
    matrices: Mapping[str, int] = field(default_factory=dict)


def shape_of(values: Mapping[str, Value], architecture: str, tensors: Sequence[Tensor]) -> Shape:
    """Read it from the metadata (ggml/docs/gguf.md) and the tensors."""

    def own(key: str) -> int:
        return number(values, f"{architecture}.{key}")

    def each(key: str) -> tuple[int, ...]:
        return _per_layer(values, f"{architecture}.{key}", layers)

    layers = min(own("block_count"), _MAX_LAYERS)
    heads = each("attention.head_count")
    kv_heads = each("attention.head_count_kv")
    # As llama.cpp does: without a number of their own there are as many for keys as for queries.
    kv_heads = kv_heads if f"{architecture}.attention.head_count_kv" in values else heads
    head = own("embedding_length") // max(heads) if any(heads) else 0
    keys, values_ = own("attention.key_length") or head, own("attention.value_length") or head
    experts = own("expert_feed_forward_length") * own("expert_used_count")
    return Shape(
        layers=layers,
        heads=max(heads, default=0),
        embedding=own("embedding_length"),
        feed_forward=max((*each("feed_forward_length"), experts)),
        kv_width=sum(kv_heads) * (keys + values_),
        tensor_bytes=sum(tensor.size or 0 for tensor in tensors),
        matrices=_matrices(tensors),
    )


def number(values: Mapping[str, Value], key: str) -> int:
    """A number that cannot be negative; 0 where the header has none."""
    value = values.get(key)
    return value if isinstance(value, int) and value >= 0 else 0


def _per_layer(values: Mapping[str, Value], key: str, layers: int) -> tuple[int, ...]:
    """A number for each layer; most files give one for all of them."""
    value = values.get(key)
    if isinstance(value, tuple):
        return tuple(max(0, one) for one in value[:layers])
    return (number(values, key),) * layers


def _matrices(tensors: Sequence[Tensor]) -> dict[str, int]:
    """Bytes by type. The table of embeddings counts where it is the output matrix too; else it is only looked up."""
    has_output = any(tensor.name == "output.weight" for tensor in tensors)
    sizes: dict[str, int] = {}
    for tensor in tensors:
        looked_up = tensor.name == "token_embd.weight" and has_output
        if tensor.elements > tensor.row and tensor.size and not looked_up:
            sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.size
    return sizes
