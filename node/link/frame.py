"""The full frame: what travels in WebSocket binary messages and, inside their coding, on serial lines and radio.

    magic 1 = 0xC5 | kind and flags 1 | stream 8 | seq 4 | length 2 | payload | [meta length 2 | TLVs] | CRC-32 4

All numbers are big-endian. The CRC-32 (IEEE 802.3, as in zlib) covers everything before it.

`kind and flags`: bits 7-6 the kind (0 DATA, 1 ACK, 2 REPAIR, 3 CTRL), bits 5-4 zero, then EOS 8, INTERRUPT 4,
HAS_META 2, ECHO 1. With HAS_META the payload is followed by the metadata's length and the metadata.

`stream` names a generation, `seq` is a number in its journal: the same cursor that SSE and WebSocket resume with.

- DATA: the payload is one entry's text, number `seq`. ECHO marks a copy. With EOS, `seq` is the number after the last
  entry, the payload is empty, and the TLV TOTALS says what the whole text is.
- ACK: everything before `seq` has come; the TLV MISSING names later entries that have not.
- REPAIR: the payload is a repair symbol of `fec`, over the entries that the TLV WINDOW names, from `seq` on.
- CTRL: the payload is JSON. With INTERRUPT the generation ends.

A TLV is `type 1 | length 1 | value`. Types that a receiver does not know are skipped, so that new ones may be added.

    1 TOTALS    entries 4 | bytes 4 | CRC-32 of the text 4
    2 MISSING   n × (first 4 | count 2), at most 32, in order; a count of 0 ends what is known
    3 WINDOW    count 1 | symbol 1
    4 QUALITY   level of parity that the other end should use on radio 1

Each length is checked before anything is taken from it; bytes after the CRC are an error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from crcmod.predefined import mkPredefinedCrcFun

from node.errors import LinkError

MAGIC = 0xC5
MAX_PAYLOAD = 0xFFFF
MAX_META = 1024

_HEAD = struct.Struct(">BBQIH")
_TOTALS = struct.Struct(">III")
_RANGE = struct.Struct(">IH")
_MAX_RANGES = 32

crc32: Callable[..., int] = mkPredefinedCrcFun("crc-32")


class Kind(IntEnum):
    DATA = 0
    ACK = 1
    REPAIR = 2
    CTRL = 3


class Flag(IntFlag):
    EOS = 8
    INTERRUPT = 4
    HAS_META = 2
    ECHO = 1


NO_FLAGS = Flag(0)


class Tlv(IntEnum):
    TOTALS = 1
    MISSING = 2
    WINDOW = 3
    QUALITY = 4


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame. `meta` is (type, value) in order; the flag HAS_META follows from it."""

    kind: Kind
    stream: int
    seq: int
    payload: bytes = b""
    flags: Flag = NO_FLAGS
    meta: tuple[tuple[int, bytes], ...] = ()

    def first(self, kind: Tlv) -> bytes | None:
        """The value of the first TLV of this type."""
        return next((value for found, value in self.meta if found == kind), None)


@dataclass(frozen=True, slots=True)
class Totals:
    """What a whole text is: entries, bytes, and its CRC-32."""

    entries: int
    size: int
    crc: int

    def encode(self) -> tuple[int, bytes]:
        """As a TLV."""
        return Tlv.TOTALS, _TOTALS.pack(self.entries, self.size, self.crc)


def encode(frame: Frame) -> bytes:
    """The bytes of a frame; raises ValueError for what does not fit its fields."""
    if len(frame.payload) > MAX_PAYLOAD:
        raise ValueError(f"a payload of {len(frame.payload)} bytes")
    flags = frame.flags & ~Flag.HAS_META
    tail = b""
    if frame.meta:
        flags |= Flag.HAS_META
        tlvs = b"".join(bytes((kind, len(value))) + value for kind, value in frame.meta)
        if len(tlvs) > MAX_META:
            raise ValueError(f"metadata of {len(tlvs)} bytes")
        tail = len(tlvs).to_bytes(2, "big") + tlvs
    try:
        head = _HEAD.pack(MAGIC, frame.kind << 6 | flags, frame.stream, frame.seq, len(frame.payload))
    except struct.error as error:
        raise ValueError(str(error)) from error
    body = head + frame.payload + tail
    return body + crc32(body).to_bytes(4, "big")


def decode(data: bytes) -> Frame:
    """The frame that `data` is, whole; raises LinkError."""
    if len(data) < _HEAD.size + 4:
        raise LinkError(f"A frame cannot be as short as {len(data)} bytes.")
    if len(data) > _HEAD.size + MAX_PAYLOAD + 2 + MAX_META + 4:
        raise LinkError(f"A frame cannot be as long as {len(data)} bytes.")
    magic, kinds, stream, seq, length = _HEAD.unpack_from(data)
    if magic != MAGIC or kinds & 0x30:
        raise LinkError("These bytes do not begin as a frame does.")
    body = data[:-4]
    if crc32(body) != int.from_bytes(data[-4:], "big"):
        raise LinkError("The frame's CRC-32 is wrong.")
    flags = Flag(kinds & 0x0F)
    end = _HEAD.size + length
    meta = _meta(body[end:]) if flags & Flag.HAS_META and end <= len(body) else ()
    if (end != len(body)) if not flags & Flag.HAS_META else end > len(body):
        raise LinkError("The frame's length field does not fit its bytes.")
    return Frame(Kind(kinds >> 6), stream, seq, body[_HEAD.size : end], flags & ~Flag.HAS_META, meta)


def _meta(data: bytes) -> tuple[tuple[int, bytes], ...]:
    size = int.from_bytes(data[:2], "big")
    if len(data) < 2 or size != len(data) - 2 or not 0 < size <= MAX_META:
        raise LinkError("The length of the frame's metadata does not fit its bytes.")
    found, at = [], 2
    while at < len(data):
        end = at + 2 + (data[at + 1] if at + 1 < len(data) else 0)
        if at + 1 >= len(data) or end > len(data):
            raise LinkError("A TLV ends after its frame.")
        found.append((data[at], data[at + 2 : end]))
        at = end
    return tuple(found)


def totals(frame: Frame) -> Totals | None:
    """What an EOS frame says of the whole text; raises LinkError where it cannot be read."""
    value = frame.first(Tlv.TOTALS)
    if value is None:
        return None
    if len(value) != _TOTALS.size:
        raise LinkError("The TLV TOTALS has a wrong length.")
    return Totals(*_TOTALS.unpack(value))


def missing_tlv(ranges: Iterable[tuple[int, int]]) -> tuple[int, bytes]:
    """The TLV that names missing entries as (first, count); at most 32 ranges are told, the lowest first."""
    return Tlv.MISSING, b"".join(_RANGE.pack(*one) for one in list(ranges)[:_MAX_RANGES])


def missing(frame: Frame) -> list[tuple[int, int]]:
    """What an ACK frame says is missing, as (first, count); raises LinkError where it cannot be read."""
    value = frame.first(Tlv.MISSING) or b""
    if len(value) % _RANGE.size or len(value) > _RANGE.size * _MAX_RANGES:
        raise LinkError("The TLV MISSING has a wrong length.")
    return [(first, count) for first, count in _RANGE.iter_unpack(value)]
