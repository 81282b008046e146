"""Frames on a radio modem's byte stream, where bits flip and bytes vanish or appear.

    marker 4 = 1A CF FC 1D | whitened { header 6 | header's parity 6 | interleaved blocks }

- The marker (CCSDS 131.0-B) is accepted with at most 3 wrong bits: 1.3e-6 per place in noise.
- The header is `level 1 | sequence 1 | length 2 | CRC-16 2` (CRC-16/CCITT-FALSE of the four bytes before), coded with
  Reed–Solomon(12, 6): 3 wrong bytes are corrected.
- `length` counts the payload with its CRC-32 (IEEE 802.3). They are split over n = ceil(length / 223) blocks of nearly
  the same size, each followed by 8, 16 or 32 parity bytes (`level` 0, 1, 2), and the blocks are sent a byte of each in
  turn, so that a burst is shared among them.
- Everything after the marker is exclusive-ored with the CCSDS pseudo-random sequence (x^8 + x^7 + x^5 + x^3 + 1, all
  ones at the start): no long runs, and a marker inside a payload is none on the air.

The order is CRC, then Reed–Solomon, then whitening, then the marker; nothing coded is escaped.

A receiver looks for the marker; the header says how much follows; the CRC judges what came; only where it fails are
the blocks corrected, and the CRC judges again, because Reed–Solomon may "correct" into something wrong. After any
failure it goes on ONE byte after the marker's begin, not after the claimed frame: the true frame may begin inside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest

from crcmod.predefined import mkPredefinedCrcFun

from node.errors import LinkError
from node.link.fec import Unrepairable, correct_block, encode_block
from node.link.frame import crc32

MARKER = bytes.fromhex("1acffc1d")
PARITY = (8, 16, 32)  # parity bytes of a block, by level
MAX_PAYLOAD = 2048

_BLOCK = 223
_HEADER, _HEADER_PARITY = 6, 6
_HEAD = _HEADER + _HEADER_PARITY
_WRONG_BITS = 3
_MARKER = int.from_bytes(MARKER, "big")
_crc16: Callable[..., int] = mkPredefinedCrcFun("crc-ccitt-false")


def _noise(size: int) -> bytes:
    register, out = 0xFF, bytearray()
    for _ in range(size):
        value = 0
        for _ in range(8):
            value = value << 1 | register & 1
            new = (register ^ register >> 3 ^ register >> 5 ^ register >> 7) & 1
            register = register >> 1 | new << 7
        out.append(value)
    return bytes(out)


_WHITENING = _noise(255) * 12


def _whiten(data: bytes, offset: int = 0) -> bytes:
    noise = _WHITENING[offset : offset + len(data)]
    return (int.from_bytes(data, "big") ^ int.from_bytes(noise, "big")).to_bytes(len(data), "big")


def _sizes(length: int) -> list[int]:
    """How many of `length` bytes each block carries."""
    blocks = -(-length // _BLOCK)
    size, more = divmod(length, blocks)
    return [size + 1] * more + [size] * (blocks - more)


def encode(payload: bytes, level: int, sequence: int = 0) -> bytes:
    """One frame on the air; raises ValueError over MAX_PAYLOAD. `sequence` counts frames, modulo 256."""
    if len(payload) > MAX_PAYLOAD:
        raise ValueError(f"a payload of {len(payload)} bytes")
    body = payload + crc32(payload).to_bytes(4, "big")
    head = bytes((level, sequence % 256)) + len(body).to_bytes(2, "big")
    head = encode_block(head + _crc16(head).to_bytes(2, "big"), _HEADER_PARITY)
    blocks, at = [], 0
    for size in _sizes(len(body)):
        blocks.append(encode_block(body[at : at + size], PARITY[level]))
        at += size
    return MARKER + _whiten(head + _interleave(blocks))


def _interleave(blocks: list[bytes]) -> bytes:
    return bytes(byte for column in zip_longest(*blocks) for byte in column if byte is not None)


def _separate(data: bytes, sizes: list[int]) -> list[bytes]:
    """The blocks of `sizes` bytes that `_interleave` mixed; the longer ones come first."""
    count, shortest = len(sizes), sizes[-1]
    even = shortest * count
    return [
        data[index:even:count] + data[even + index : even + index + 1] * (size > shortest)
        for index, size in enumerate(sizes)
    ]


@dataclass(frozen=True, slots=True)
class Received:
    """A payload that the CRC vouches for, and how many of the frame's coded bytes were wrong."""

    payload: bytes
    sequence: int
    corrected: int
    size: int


class Reader:
    """Finds frames in a stream of bytes; holds less than two of the longest frames."""

    LIMIT = 2 * (len(MARKER) + _HEAD + MAX_PAYLOAD + 4 + 10 * max(PARITY))

    def __init__(self) -> None:
        self._held = bytearray()
        self.skipped = 0  # bytes that belonged to no frame

    def feed(self, data: bytes) -> list[Received | LinkError]:
        """Frames in order; an error stands where a header promised a frame that could not be had."""
        found: list[Received | LinkError] = []
        for start in range(0, len(data), 1024):
            self._held += data[start : start + 1024]
            while (one := self._next()) is not None:
                found.append(one)
        return found

    def _next(self) -> Received | LinkError | None:
        """The next frame or broken promise; None until more bytes come."""
        while (at := _find_marker(self._held)) is not None:
            self._skip(at)
            if len(self._held) < len(MARKER) + _HEAD:
                return None
            head = _header(bytes(self._held[len(MARKER) : len(MARKER) + _HEAD]))
            if head is None:
                self._skip(1)
                continue
            level, sequence, length, wrong = head
            sizes = [size + PARITY[level] for size in _sizes(length)]
            end = len(MARKER) + _HEAD + sum(sizes)
            if len(self._held) < end:
                return None
            coded = _whiten(bytes(self._held[len(MARKER) + _HEAD : end]), _HEAD)
            got = _body(_separate(coded, sizes), PARITY[level])
            if got is None:
                self._skip(1)
                return LinkError("A frame was damaged beyond repair.")
            del self._held[:end]
            return Received(got[0], sequence, got[1] + wrong, end)
        self._skip(max(0, len(self._held) - len(MARKER) + 1))
        return None

    def _skip(self, count: int) -> None:
        del self._held[:count]
        self.skipped += count


def _find_marker(data: bytes | bytearray) -> int | None:
    """Where a marker begins, some wrong bits allowed."""
    value = int.from_bytes(data[:3], "big")
    for at in range(3, len(data)):
        value = (value << 8 | data[at]) & 0xFFFFFFFF
        if (value ^ _MARKER).bit_count() <= _WRONG_BITS:
            return at - 3
    return None


def _header(coded: bytes) -> tuple[int, int, int, int] | None:
    """Level, sequence, length and corrected bytes; None where it is no header."""
    try:
        head, wrong = correct_block(_whiten(coded), _HEADER_PARITY)
    except Unrepairable:
        return None
    level, sequence, length = head[0], head[1], int.from_bytes(head[2:4], "big")
    true = _crc16(head[:4]) == int.from_bytes(head[4:6], "big")
    return (level, sequence, length, wrong) if true and level < 3 and 4 <= length <= MAX_PAYLOAD + 4 else None


def _body(blocks: list[bytes], parity: int) -> tuple[bytes, int] | None:
    """The payload and how many bytes were corrected; None where the CRC vouches for nothing."""
    body = b"".join(block[:-parity] for block in blocks)
    if _vouched(body):
        return body[:-4], 0
    try:
        corrected = [correct_block(block, parity) for block in blocks]
    except Unrepairable:
        return None
    body = b"".join(data for data, _ in corrected)
    return (body[:-4], sum(count for _, count in corrected)) if _vouched(body) else None


def _vouched(body: bytes) -> bool:
    return crc32(body[:-4]) == int.from_bytes(body[-4:], "big")


class ParityLevel:
    """How much parity the next frame gets, from what the other end had to correct.

    Up at once when a block comes near half of what its parity can mend, or a frame was lost; down after `CALM` frames
    that the next lower level would have mended with a factor of four to spare.
    """

    CALM = 32

    def __init__(self) -> None:
        self.level = 1
        self._calm = 0

    def observe(self, corrected: int, size: int) -> None:
        """A frame of `size` coded bytes came through after `corrected` of them were mended."""
        per_block = corrected / max(1.0, size / 255)
        if per_block > PARITY[self.level] / 4:
            self.lost()
        elif self.level and per_block <= PARITY[self.level - 1] / 8:
            self._calm += 1
            if self._calm >= self.CALM:
                self.level, self._calm = self.level - 1, 0
        else:
            self._calm = 0

    def lost(self) -> None:
        """A frame was lost."""
        self.level, self._calm = min(2, self.level + 1), 0
