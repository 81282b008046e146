from __future__ import annotations

import ctypes
import importlib.util
import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.errors import ModelFileError
from node.models import gguf
from node.models.shape import Shape
from tests.models.support import DATA_BYTES, PAIRS, TENSORS, gguf_bytes, pair, strings, tensor, text
from tests.support import tiny_model

WHOLE = gguf_bytes()
MODEL = pair("general.architecture", 8, text("llama"))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf") / "m.gguf"


def read(scratch: Path, content: bytes) -> gguf.Summary:
    scratch.write_bytes(content)
    return gguf.read(scratch)


@pytest.mark.parametrize("version", [2, 3])
def test_a_whole_file_is_summed_up(scratch: Path, version: int) -> None:
    content = gguf_bytes(version=version)
    assert read(scratch, content) == gguf.Summary(
        architecture="llama",
        name="Tiny",
        context_length=512,
        vocabulary=4,
        has_chat_template=True,
        quantization="F32",
        parameters=64 * 4 + 64 * 2,
        tensors=2,
        file_bytes=len(content),
        shape=Shape(tensor_bytes=1024 + 4 * 18, matrices={"Q4_0": 4 * 18}),
    )


def test_lists_of_numbers_are_kept_where_they_are_short(scratch: Path) -> None:
    heads = struct.pack("<IQ3I", 4, 3, 2, 0, 1)
    layers = pair("llama.block_count", 4, struct.pack("<I", 3)), pair("llama.embedding_length", 4, b"\x40\0\0\0")
    counts = pair("llama.attention.head_count", 4, b"\x08\0\0\0"), pair("llama.attention.head_count_kv", 9, heads)
    assert read(scratch, gguf_bytes((MODEL, *layers, *counts))).shape.kv_width == 3 * 16
    long = pair("llama.attention.head_count_kv", 9, struct.pack("<IQ5000I", 4, 5000, *range(5000)))
    # Only their number is kept, and it is one for all layers.
    assert read(scratch, gguf_bytes((MODEL, *layers, counts[0], long))).shape.kv_width == 3 * 5000 * 16


def test_what_the_header_does_not_say(scratch: Path) -> None:
    found = read(scratch, gguf_bytes((MODEL, pair("llama.context_length", 8, text("many")))))
    assert (found.name, found.context_length, found.vocabulary, found.has_chat_template) == ("", 0, 0, False)


def test_a_type_that_is_not_in_the_table_is_only_checked_for_its_beginning(scratch: Path) -> None:
    assert read(scratch, gguf_bytes((MODEL,), (tensor("t", (7,), 99, 0),), data=0)).quantization == "type 99"
    with pytest.raises(ModelFileError, match="truncated: the tensor 't'"):
        read(scratch, gguf_bytes((MODEL,), (tensor("t", (7,), 99, 4096),), data=0))


def test_every_cut_is_found(scratch: Path) -> None:
    for length in (*range(len(WHOLE) - DATA_BYTES), *range(len(WHOLE) - DATA_BYTES, len(WHOLE), 50)):
        with pytest.raises(ModelFileError, match=r"truncated|empty"):
            read(scratch, WHOLE[:length])


def test_a_cut_names_the_tensor_and_both_sizes(scratch: Path) -> None:
    complaint = f"truncated: the tensor 'output.weight' ends at byte {len(WHOLE):,} but the file has {len(WHOLE) - 1:,}"
    with pytest.raises(ModelFileError, match=complaint) as caught:
        read(scratch, WHOLE[:-1])
    assert str(scratch) in caught.value.message
    assert caught.value.hint == "Fetch or copy the file again."


ALIGNED = pair("general.alignment", 4, struct.pack("<I", 64))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "it is empty"),
        (b"PK\x03\x04" + bytes(100), "not a GGUF file"),
        (b"<!DOCTYPE html>", "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 1, 1), "GGUF version 1"),
        (b"GGUF" + struct.pack("<IQQ", 4, 1, 1), "GGUF version 4"),
        (b"GGUF" + struct.pack(">IQQ", 3, 1, 1), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1), "claims to hold 0 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1), "tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 1 << 60), "metadata pairs"),
        (gguf_bytes(()), "which architecture"),
        (gguf_bytes((MODEL, MODEL)), "'general.architecture' stands twice"),
        (gguf_bytes((MODEL, pair("", 8, text("")))), "key is empty"),
        (gguf_bytes((MODEL, pair("k", 13, b""))), "'k' has an unknown type"),
        (gguf_bytes((MODEL, pair("k" * 2000, 0, b"\0"))), "a metadata key claims to be 2000 bytes"),
        (gguf_bytes((pair("k", 8, struct.pack("<Q", 1 << 63)),)), "truncated: its header"),
        (gguf_bytes((pair("k", 9, struct.pack("<IQ", 9, 1)),)), "elements of an unknown type"),
        (gguf_bytes((pair("k", 9, struct.pack("<IQ", 0, 1 << 62)),)), "claims to have"),
        (gguf_bytes((pair("k", 9, struct.pack("<IQ", 8, 1 << 22)),)), "truncated: its header"),
        (gguf_bytes((pair("k", 9, struct.pack("<IQ", 10, 1 << 22)),)), "truncated: its header"),
        (gguf_bytes((MODEL, pair("general.type", 8, text("adapter")))), r"one part of it \(adapter\)"),
        (gguf_bytes((MODEL, pair("general.alignment", 4, bytes(4)))), "no power of two"),
        (gguf_bytes((MODEL, pair("general.alignment", 4, struct.pack("<I", 48)))), "no power of two"),
        (gguf_bytes((MODEL, pair("general.alignment", 8, text("32")))), "no power of two"),
        (gguf_bytes((MODEL, ALIGNED), (tensor("t", (1,), 0, 32),)), "no multiple of 64"),
        (gguf_bytes((MODEL,), (tensor("t", (1,) * 5, 0, 0),)), "has 5 dimensions"),
        (gguf_bytes((MODEL,), (tensor("t", (1 << 62, 4), 0, 0),)), "impossible shape"),
        (gguf_bytes((MODEL,), (tensor("t", (33,), 2, 0),)), "rows of 33 elements"),
        (gguf_bytes((MODEL,), (tensor("t" * 64, (1,), 0, 0),)), "a tensor's name claims"),
        (gguf_bytes((MODEL,), (TENSORS[0], TENSORS[0])), "'token_embd.weight' stands twice"),
        (gguf_bytes((MODEL,), (tensor("t", (1,), 0, 1 << 62),)), "truncated"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(scratch: Path, content: bytes, complaint: str) -> None:
    with pytest.raises(ModelFileError, match=complaint):
        read(scratch, content)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="No such file"):
        gguf.read(tmp_path / "missing.gguf")
    with pytest.raises(ModelFileError, match="Is a directory"):
        gguf.read(tmp_path)


def test_an_alignment_other_than_the_usual(scratch: Path) -> None:
    tensors = (tensor("a", (1,), 0, 0), tensor("b", (1,), 0, 64))
    content = gguf_bytes((MODEL, ALIGNED), tensors, data=68, alignment=64)
    assert read(scratch, content).tensors == 2
    with pytest.raises(ModelFileError, match="truncated"):
        read(scratch, content[:-1])


def read_or_refuse(scratch: Path, content: bytes) -> None:
    """Any bytes are one of two things."""
    try:
        assert isinstance(read(scratch, content), gguf.Summary)
    except ModelFileError:
        pass


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(scratch: Path, content: bytes) -> None:
    read_or_refuse(scratch, content)
    read_or_refuse(scratch, WHOLE[:24] + content)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, len(WHOLE) - DATA_BYTES - 1), st.binary(min_size=1, max_size=8)), max_size=6),
    st.integers(0, len(WHOLE)),
)
def test_any_damage_is_read_or_refused(scratch: Path, damage: list[tuple[int, bytes]], length: int) -> None:
    content = bytearray(WHOLE)
    for at, new in damage:
        content[at : at + len(new)] = new
    read_or_refuse(scratch, bytes(content))
    read_or_refuse(scratch, bytes(content[:length]))


def test_memory_stays_small_whatever_a_file_claims(scratch: Path) -> None:
    big = 1 << 30
    start = b"GGUF" + struct.pack("<IQQ", 3, 1, 2) + PAIRS[0] + text("general.name") + struct.pack("<IQ", 8, big)
    with scratch.open("wb") as file:
        file.write(start)
        file.truncate(big + 4096)  # sparse: takes no disk
    tracemalloc.start()
    try:
        assert gguf.read(scratch).name == "\0" * 1024  # the zeros behind it are a tensor without name and shape
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_large_vocabulary_is_passed_quickly(scratch: Path) -> None:
    tokens = pair("tokenizer.ggml.tokens", 9, strings(*(f"token{number}" for number in range(50_000))))
    content = gguf_bytes((MODEL, tokens))
    read(scratch, content)
    before = time.perf_counter()
    assert gguf.read(scratch).vocabulary == 50_000
    assert time.perf_counter() - before < 0.15


def test_the_table_of_types_is_that_of_llama_cpp() -> None:
    spec = importlib.util.find_spec("llama_cpp")
    library = Path(str(spec and spec.origin)).parent / "lib" / "libggml-base.so"
    if not library.exists():
        pytest.skip("llama.cpp's library stands elsewhere on this machine")
    ggml = ctypes.CDLL(str(library))
    ggml.ggml_type_size.restype = ctypes.c_size_t
    ggml.ggml_blck_size.restype = ctypes.c_int64
    ggml.ggml_type_name.restype = ctypes.c_char_p
    for kind, (name, block, size) in gguf.TYPES.items():
        found = (ggml.ggml_type_name(kind).decode().upper(), ggml.ggml_blck_size(kind), ggml.ggml_type_size(kind))
        assert found == (name, block, size)


def test_the_layout_is_where_things_begin(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "tiny.gguf")
    found = gguf.layout(path)
    data = path.read_bytes()
    assert found.size == len(data)
    assert found.pairs[0] == ("general.architecture", 24)
    for key, at in found.pairs:
        assert data[at + 8 : at + 8 + len(key)] == key.encode()
    assert found.descriptions < found.data == found.tensors[0][1]
    assert [at for _, at in found.tensors] == sorted(at for _, at in found.tensors)
    with pytest.raises(ModelFileError, match="Cannot read"):
        gguf.layout(tmp_path / "none")
