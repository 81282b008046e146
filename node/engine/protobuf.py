"""Protocol Buffers' wire format, read one field at a time: no length is believed before it fits what holds it.

A message is fields one after another, each a varint `number << 3 | kind` and its value (protobuf.dev, "Encoding").
"""

from __future__ import annotations

from collections.abc import Iterator

from node.errors import ModelFileError

Field = tuple[int, "int | memoryview"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}


def fields(message: memoryview) -> Iterator[Field]:
    """(number, value) of every field; numbers come as int, texts, bytes and inner messages as views without a copy."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise ModelFileError(f"it is not what it claims to be (a field without a number at byte {at:,})")
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise ModelFileError(f"it is not what it claims to be (a field of kind {kind} at byte {at:,})")
        if length > len(message) - at:
            raise ModelFileError(f"truncated: a field of {length:,} bytes begins where {len(message) - at:,} are left")
        inner = message[at : at + length]
        at += length
        yield number, int.from_bytes(inner, "little") if kind in _FIXED else inner


def text(value: int | memoryview, limit: int) -> str:
    """A text field of at most `limit` bytes."""
    if isinstance(value, int):
        raise ModelFileError("a number stands where a text must be")
    if len(value) > limit:
        raise ModelFileError(f"a text of {len(value):,} bytes stands where {limit:,} can be")
    return bytes(value).decode(errors="replace")


def number(value: int | memoryview) -> int:
    """A number field; 64-bit two's complement, as int64 fields are written."""
    if not isinstance(value, int):
        raise ModelFileError("a text stands where a number must be")
    return value - (1 << 64) if value >= 1 << 63 else value


def inner(value: int | memoryview) -> memoryview:
    """A message or bytes field."""
    if isinstance(value, int):
        raise ModelFileError("a number stands where a message must be")
    return value


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """The number that begins at `at`, and the place behind it; ten bytes at most."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ModelFileError("truncated: it ends inside a number")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
    raise ModelFileError(f"it is not what it claims to be (a number of more than ten bytes before byte {at:,})")
