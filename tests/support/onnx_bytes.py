"""Small ONNX graphs and folders, written by hand: what the checks read, and nothing that could be run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LAYERS, HEADS, SIZE, VOCABULARY, STATES = 2, 3, 4, 10, 8


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | bytes | str) -> bytes:
    """One field: a number as varint, anything else with its length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value & (1 << 64) - 1)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def value_info(name: str, kind: int, shape: Sequence[int | str]) -> bytes:
    """A ValueInfoProto; a dimension is a number or a name."""
    dims = b"".join(field(1, field(1, d) if isinstance(d, int) else field(2, d)) for d in shape)
    return field(1, name) + field(2, field(1, field(1, kind) + field(2, dims)))


def outside(name: str, **place: object) -> bytes:
    """A TensorProto whose numbers lie in another file."""
    entries = b"".join(field(13, field(1, key) + field(2, str(text))) for key, text in place.items())
    return field(8, name) + entries


def graph(
    *,
    opset: int = 21,
    weights: Sequence[bytes] = (),
    cache: int = 1,
    leave_out: str = "",
    vocabulary: int = VOCABULARY,
    states: bool = True,
    head_size: int | str = SIZE,
) -> bytes:
    """A decoder's skeleton as GenAI's builder names things; `cache` is the ONNX type of the cache."""
    shape = ["batch", HEADS, "past", head_size]
    inputs = [value_info("input_ids", 7, ["batch", "tokens"]), value_info("attention_mask", 7, ["batch", "total"])]
    outputs = [value_info("logits", 1, ["batch", 1, vocabulary])]
    if states:
        outputs.append(value_info("hidden_states", 1, ["batch", "tokens", STATES]))
    for layer in range(LAYERS):
        for kind in ("key", "value"):
            inputs.append(value_info(f"past_key_values.{layer}.{kind}", cache, shape))
            outputs.append(value_info(f"present.{layer}.{kind}", cache, shape))
    inputs = [one for one in inputs if not leave_out or leave_out.encode() not in one]
    parts = [field(1, b"a node"), *(field(5, one) for one in weights)]
    parts += [field(11, one) for one in inputs] + [field(12, one) for one in outputs]
    return field(1, 10) + field(7, b"".join(parts)) + field(8, field(1, "") + field(2, opset))


def config(**changes: Any) -> dict[str, Any]:
    """genai_config.json; `decoder_…` and `search_…` change those tables, the rest the model's."""
    decoder: dict[str, Any] = {"num_hidden_layers": LAYERS, "num_key_value_heads": HEADS, "head_size": SIZE}
    model: dict[str, Any] = {"context_length": 64, "eos_token_id": 2, "vocab_size": VOCABULARY}
    search: dict[str, Any] = {"past_present_share_buffer": True}
    whole: dict[str, Any] = {}
    for name, value in changes.items():
        table, _, key = name.partition("_")
        places = {"decoder": decoder, "search": search, "whole": whole}
        places.get(table, model)[key if table in places else name] = value
    return {"model": {**model, "decoder": decoder}, "search": search, **whole}


def write_folder(path: Path, graph_bytes: bytes | None = None, **changes: Any) -> Path:
    """A folder that passes every check, unless `changes` say otherwise."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "model.onnx").write_bytes(graph() if graph_bytes is None else graph_bytes)
    (path / "genai_config.json").write_text(json.dumps(config(**changes)))
    (path / "tokenizer.json").write_text("{}")
    return path
