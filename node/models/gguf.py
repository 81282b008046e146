"""A look at a GGUF file before llama.cpp sees it: is it whole, and what does it hold?

llama.cpp maps the file and trusts much of it; a truncated download then ends in a crash or in garbage. Here every
length is checked against the file before anything is read or skipped, and at most one window of it is in memory.

    "GGUF"  u32 version  u64 tensors  u64 pairs
    pairs   string key, u32 type, value         an array is: u32 type, u64 count, values; a string: u64 length, bytes
    tensors string name, u32 dimensions, u64 each, u32 type, u64 offset in the data
    data    begins at the next multiple of general.alignment; all little-endian (ggml/docs/gguf.md)
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from node.errors import ModelFileError
from node.models.shape import Shape, Tensor, Value, number, shape_of
from node.models.window import Window

_MAX_PAIRS = 8192
_MAX_TENSORS = 65_536
_MAX_KEY_BYTES = 1024
_MAX_NAME_BYTES = 63  # GGML_MAX_NAME less its NUL
_MAX_DIMENSIONS = 4
_MAX_ARRAY = 1 << 23  # the largest vocabularies have under 2^19 tokens
_MAX_KEPT_TEXT = 1024
_MAX_KEPT_NUMBERS = 4096  # lists with one number a layer; longer ones are vocabularies
_INT64_MAX = (1 << 63) - 1

_STRING, _ARRAY = 8, 9
_INTEGERS = {0, 1, 2, 3, 4, 5, 10, 11}
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}

# type: (name, elements of a block, bytes of a block), as ggml_blck_size and ggml_type_size give them
TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Summary:
    """What the header says; `context_length` and `vocabulary` are 0 where it says nothing."""

    architecture: str
    name: str
    context_length: int
    vocabulary: int
    has_chat_template: bool
    quantization: str  # of the type that holds most of the bytes
    parameters: int
    tensors: int
    file_bytes: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things begin in the file, in bytes: metadata pairs, the tensors' descriptions, tensors in file order."""

    pairs: tuple[tuple[str, int], ...]
    descriptions: int
    data: int
    tensors: tuple[tuple[str, int], ...]
    size: int


def layout(path: Path) -> Layout:
    """Find the parts of a file that `read` takes; raises ModelFileError."""
    read(path)
    try:
        with path.open("rb", buffering=0) as file:
            return _layout(Window(file))
    except OSError as error:
        raise ModelFileError(f"Cannot read {path}: {error.strerror}.") from error


def _layout(window: Window) -> Layout:
    count, tensors = _read_start(window)
    values: dict[str, Value] = {}
    pairs = []
    for _ in range(count):
        at = window.position
        key, value = _read_pair(window)
        values[key] = value
        pairs.append((key, at))
    descriptions = window.position
    found = sorted(_read_tensors(window, tensors), key=lambda tensor: tensor.offset)
    alignment = _alignment(values)
    data = -(-window.position // alignment) * alignment
    begins = tuple((tensor.name, data + tensor.offset) for tensor in found)
    return Layout(tuple(pairs), descriptions, data, begins, window.size)


def read(path: Path) -> Summary:
    """Check the header and that every tensor lies inside the file; raises ModelFileError that names what is wrong."""
    try:
        with path.open("rb", buffering=0) as file:
            return _read(Window(file))
    except OSError as error:
        raise ModelFileError(f"Cannot read {path}: {error.strerror}.") from error
    except ModelFileError as error:
        raise ModelFileError(
            f"{path} cannot be used: {error.message}.", hint=error.hint or "Fetch or copy the file again."
        ) from error


def _read(window: Window) -> Summary:
    pairs, tensors = _read_start(window)
    values = _read_pairs(window, pairs)
    architecture = _text(values, "general.architecture")
    kind = _text(values, "general.type") or "model"
    if kind != "model":
        raise ModelFileError(f"it holds not a model but one part of it ({kind})", hint="Name the model's own file.")
    if not architecture:
        raise ModelFileError("it does not say which architecture it has (general.architecture)")
    found = _read_tensors(window, tensors)
    _check_extents(found, window, _alignment(values))
    return Summary(
        architecture=architecture,
        name=_text(values, "general.name"),
        context_length=number(values, f"{architecture}.context_length"),
        vocabulary=number(values, "tokenizer.ggml.tokens"),
        has_chat_template=bool(_text(values, "tokenizer.chat_template")),
        quantization=_main_type(found),
        parameters=sum(tensor.elements for tensor in found),
        tensors=tensors,
        file_bytes=window.size,
        shape=shape_of(values, architecture, found),
    )


def _read_start(window: Window) -> tuple[int, int]:
    if window.size == 0:
        raise ModelFileError("it is empty")
    magic = window.take(4)
    if magic != b"GGUF":
        raise ModelFileError(f"it is not a GGUF file (it begins with {magic!r})")
    version = window.u32()
    if version & 0xFFFF == 0:
        raise ModelFileError("its byte order is that of another kind of machine (big-endian)")
    if version not in (2, 3):
        raise ModelFileError(f"it is GGUF version {version}, but only 2 and 3 can be read")
    tensors, pairs = window.u64(), window.u64()
    if not 0 < tensors <= _MAX_TENSORS:
        raise ModelFileError(f"it claims to hold {tensors} tensors (1 to {_MAX_TENSORS} can be)")
    if pairs > _MAX_PAIRS:
        raise ModelFileError(f"it claims to hold {pairs} metadata pairs (at most {_MAX_PAIRS} can be)")
    return pairs, tensors


def _read_pairs(window: Window, count: int) -> dict[str, Value]:
    """Every key with its value; a long text is cut, of a list of texts or many numbers only its length is kept."""
    values: dict[str, Value] = {}
    for _ in range(count):
        key, value = _read_pair(window)
        if not key or key in values:
            raise ModelFileError(f"the metadata key {key!r} stands twice" if key else "a metadata key is empty")
        values[key] = value
    return values


def _read_pair(window: Window) -> tuple[str, Value]:
    key = window.text(_MAX_KEY_BYTES, "a metadata key")
    return key, _read_value(window, key, window.u32())


def _read_value(window: Window, key: str, kind: int) -> Value:
    if kind == _STRING:
        return window.text_cut(_MAX_KEPT_TEXT)
    if kind == _ARRAY:
        return _read_array(window, key)
    if kind not in _SCALARS:
        raise ModelFileError(f"the metadata key {key!r} has an unknown type ({kind})")
    layout = _SCALARS[kind]
    value: int | float | bool = struct.unpack(layout, window.take(struct.calcsize(layout)))[0]
    return value


def _read_array(window: Window, key: str) -> int | tuple[int, ...]:
    kind, count = window.u32(), window.u64()
    if kind != _STRING and kind not in _SCALARS:
        raise ModelFileError(f"the list {key!r} has elements of an unknown type ({kind})")
    if count > _MAX_ARRAY:
        raise ModelFileError(f"the list {key!r} claims to have {count} elements (at most {_MAX_ARRAY} can be)")
    if kind == _STRING:
        window.skip_texts(count)
        return count
    layout = _SCALARS[kind]
    if kind in _INTEGERS and count <= _MAX_KEPT_NUMBERS:
        return struct.unpack(f"<{count}{layout[1]}", window.take(count * struct.calcsize(layout)))
    window.skip(count * struct.calcsize(layout))
    return count


def _read_tensors(window: Window, count: int) -> list[Tensor]:
    names: set[str] = set()
    tensors = []
    for _ in range(count):
        tensor = _read_tensor(window)
        if tensor.name in names:
            raise ModelFileError(f"the tensor {tensor.name!r} stands twice")
        names.add(tensor.name)
        tensors.append(tensor)
    return tensors


def _read_tensor(window: Window) -> Tensor:
    name = window.text(_MAX_NAME_BYTES, "a tensor's name")
    dimensions = window.u32()
    if dimensions > _MAX_DIMENSIONS:
        raise ModelFileError(f"the tensor {name!r} has {dimensions} dimensions (at most {_MAX_DIMENSIONS} can be)")
    row, elements = 1, 1
    for index in range(dimensions):
        length = window.u64()
        row = length if index == 0 else row
        elements *= length
    if elements > _INT64_MAX:
        raise ModelFileError(f"the tensor {name!r} has an impossible shape")
    kind, offset = window.u32(), window.u64()
    if kind not in TYPES:
        return Tensor(name, f"type {kind}", row, elements, offset, None)
    type_name, block, block_bytes = TYPES[kind]
    if row % block:
        raise ModelFileError(f"the tensor {name!r} has rows of {row} elements, which is no multiple of {block}")
    return Tensor(name, type_name, row, elements, offset, elements // block * block_bytes)


def _check_extents(tensors: list[Tensor], window: Window, alignment: int) -> None:
    data = -(-window.position // alignment) * alignment
    for tensor in tensors:
        if tensor.offset % alignment:
            raise ModelFileError(f"the tensor {tensor.name!r} begins at {tensor.offset}, no multiple of {alignment}")
        end = data + tensor.offset + (tensor.size or 0)
        if end > window.size:
            raise ModelFileError(
                f"truncated: the tensor {tensor.name!r} ends at byte {end:,} but the file has {window.size:,}"
            )


def _alignment(values: dict[str, Value]) -> int:
    alignment = values.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise ModelFileError(f"general.alignment is {alignment!r}, which is no power of two")
    return alignment


def _main_type(tensors: list[Tensor]) -> str:
    sizes: dict[str, int] = {}
    for tensor in tensors:
        sizes[tensor.type] = sizes.get(tensor.type, 0) + (tensor.size or 0)
    return max(sizes, key=lambda name: sizes[name])


def _text(values: dict[str, Value], key: str) -> str:
    value = values.get(key)
    return value if isinstance(value, str) else ""
