"""What the header says about memory, in the ways that files say it."""

from __future__ import annotations

import pytest

from node.models.shape import Shape, Tensor, Value, number, shape_of

LLAMA: dict[str, Value] = {
    "llama.block_count": 2,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 256,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 2,
}
EMBEDDING = Tensor("token_embd.weight", "Q8_0", 64, 6400, 0, 6800)
NORM = Tensor("blk.0.attn_norm.weight", "F32", 64, 64, 0, 256)
MATRIX = Tensor("blk.0.ffn_up.weight", "Q4_0", 64, 64 * 256, 0, 9216)
OUTPUT = Tensor("output.weight", "Q6_K", 64, 6400, 0, 5250)
UNKNOWN = Tensor("blk.0.x.weight", "type 99", 64, 128, 0, None)


def test_grouped_queries() -> None:
    assert shape_of(LLAMA, "llama", [EMBEDDING, NORM, MATRIX]) == Shape(
        layers=2,
        heads=8,
        embedding=64,
        feed_forward=256,
        kv_width=2 * 2 * (8 + 8),  # layers x heads x keys and values of 64 / 8 numbers
        tensor_bytes=6800 + 256 + 9216,
        matrices={"Q8_0": 6800, "Q4_0": 9216},  # the embeddings are the output too
    )


@pytest.mark.parametrize(
    ("more", "width"),
    [
        ({"llama.attention.head_count_kv": (2, 1)}, 3 * 16),  # another number in each layer
        ({"llama.attention.head_count_kv": (2, 0)}, 2 * 16),  # a layer without attention
        ({"llama.attention.head_count_kv": (-5, 1)}, 16),
        ({"llama.attention.head_count_kv": 0}, 0),
        ({"llama.attention.key_length": 32, "llama.attention.value_length": 16}, 4 * 48),
        ({"llama.attention.head_count": 0}, 0),
        ({"llama.block_count": 0}, 0),
        ({"llama.block_count": 1 << 60}, 4096 * 2 * 16),  # bounded
    ],
)
def test_the_width_of_the_cache(more: dict[str, Value], width: int) -> None:
    assert shape_of(LLAMA | more, "llama", []).kv_width == width


def test_as_many_keys_as_queries_where_the_file_does_not_say() -> None:
    without = {key: value for key, value in LLAMA.items() if not key.endswith("_kv")}
    assert shape_of(without, "llama", []).kv_width == 2 * 8 * 16


@pytest.mark.parametrize(
    ("more", "width"),
    [
        ({"llama.feed_forward_length": (100, 300)}, 300),
        ({"llama.expert_feed_forward_length": 200, "llama.expert_used_count": 4}, 800),
        ({"llama.feed_forward_length": "wide"}, 0),
    ],
)
def test_the_widest_layer(more: dict[str, Value], width: int) -> None:
    assert shape_of(LLAMA | more, "llama", []).feed_forward == width


def test_embeddings_beside_an_output_matrix_are_only_looked_up() -> None:
    found = shape_of(LLAMA, "llama", [EMBEDDING, MATRIX, OUTPUT, UNKNOWN])
    assert found.matrices == {"Q4_0": 9216, "Q6_K": 5250}
    assert found.tensor_bytes == 6800 + 9216 + 5250


def test_a_header_without_anything() -> None:
    assert shape_of({}, "", []) == Shape()


@pytest.mark.parametrize("value", [-1, "3", None, 2.5, (1, 2)])
def test_what_is_no_number(value: Value) -> None:
    assert number({"key": value}, "key") == 0
