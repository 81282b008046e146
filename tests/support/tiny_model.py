"""A language model of one megabyte with random weights, which llama.cpp loads in milliseconds.

It says nonsense, always the same, and has every part that a real one has: so it can be packed, loaded, compared and
measured where nobody needs sense. Rows are of 256, so that every form of weights fits.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

_WIDTH, _HEADS, _KV_HEADS, _HIDDEN, _CONTEXT = 256, 4, 2, 256, 512
_PIECES = [" the", " a", " of", "ing", "er", "on", "e", "t", "o", " "]
_BEGINNING = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
_U32, _F32, _STRING, _ARRAY, _I32 = 4, 6, 8, 9, 5
_ALIGNMENT = 32

Value = str | int | float


def write(path: Path, seed: int = 1, blocks: int = 1, pieces: Sequence[str] = _PIECES) -> Path:
    """Write the model; another seed is another model of the same size, `pieces` are its words beside single bytes."""
    words = [*_BEGINNING, *pieces]
    tensors = _tensors(np.random.default_rng(seed), blocks, len(words))
    pairs = [_pair(key, value) for key, value in _metadata(blocks).items()]
    pairs += [
        _array("tokenizer.ggml.tokens", _STRING, [piece.replace(" ", "\u2581") for piece in words]),
        _array("tokenizer.ggml.scores", _F32, [0.0 if n < len(_BEGINNING) else float(-n) for n in range(len(words))]),
        _array("tokenizer.ggml.token_type", _I32, [2, 3, 3, *[6] * 256, *[1] * len(pieces)]),
    ]
    head, data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs), b""
    for name, values in tensors.items():
        head += _text(name) + struct.pack("<I", values.ndim)
        head += struct.pack(f"<{values.ndim}Q", *reversed(values.shape)) + struct.pack("<IQ", 0, len(data))
        data += values.tobytes()
        data += bytes(-len(data) % _ALIGNMENT)
    path.write_bytes(head + bytes(-len(head) % _ALIGNMENT) + data)
    return path


def _metadata(blocks: int) -> dict[str, Value]:
    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "general.file_type": 0,
        "llama.block_count": blocks,
        "llama.context_length": _CONTEXT,
        "llama.embedding_length": _WIDTH,
        "llama.feed_forward_length": _HIDDEN,
        "llama.attention.head_count": _HEADS,
        "llama.attention.head_count_kv": _KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": _WIDTH // _HEADS,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def _tensors(dice: np.random.Generator, blocks: int, words: int) -> dict[str, np.ndarray]:
    def matrix(rows: int, columns: int) -> np.ndarray:
        return dice.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)

    ones, kv = np.ones(_WIDTH, np.float32), _WIDTH * _KV_HEADS // _HEADS
    found = {"token_embd.weight": 30 * matrix(words, _WIDTH), "output_norm.weight": ones}
    for number in range(blocks):
        block = {
            "attn_norm": ones,
            "attn_q": matrix(_WIDTH, _WIDTH),
            "attn_k": matrix(kv, _WIDTH),
            "attn_v": matrix(kv, _WIDTH),
            "attn_output": matrix(_WIDTH, _WIDTH),
            "ffn_norm": ones,
            "ffn_gate": matrix(_HIDDEN, _WIDTH),
            "ffn_up": matrix(_HIDDEN, _WIDTH),
            "ffn_down": matrix(_WIDTH, _HIDDEN),
        }
        found |= {f"blk.{number}.{name}.weight": values for name, values in block.items()}
    return found | {"output.weight": 3 * matrix(words, _WIDTH)}


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _pair(key: str, value: Value) -> bytes:
    if isinstance(value, str):
        return _text(key) + struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, float):
        return _text(key) + struct.pack("<If", _F32, value)
    return _text(key) + struct.pack("<II", _U32, value)


def _array(key: str, kind: int, values: Sequence[Value]) -> bytes:
    layout = {_F32: "<f", _I32: "<i"}
    items = [_text(str(value)) if kind == _STRING else struct.pack(layout[kind], value) for value in values]
    return _text(key) + struct.pack("<IIQ", _ARRAY, kind, len(values)) + b"".join(items)
