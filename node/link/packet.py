"""The datagram: a head in the clear, then sealed blocks, as compact as short packets ask for.

This is version 2 of the format, and of what `connection` does with it. Nothing in a datagram says so: both ends agree
on it before the first one, over HTTP (`server.links`), and the labels of `crypto` name it, so that ends of different
versions have different keys.

    head: kind 1 = 0x4F | connection 4 | packet number 4        then the sealed body, then its tag of 16 bytes
    head: kind 1 = 0x4E | connection 4 | its low 16 bits 2      the same for fewer bytes

The number is the one of 32 bits that is nearest to the largest that has come, plus one; a sender takes the short head
while its number is less than 16384 above the largest that was acknowledged (before that: above -1). Sealed is, as
`crypto` says, with the whole number and the head as it was sent, so that a wrong guess is a wrong tag. A datagram is at
most 1200 bytes, so that no network cuts it. Numbers are big-endian.
The body is a row of blocks, each with its type in its first byte:

    0 PAD       nothing; skipped
    1 DATA      slot 1 | first 2 | count 1 | count × (varint length | bytes)
    2 REPAIR    slot 1 | first 2 | count 1 | symbol 1 | symbols 1 | size 1 | symbols × size
    3 END       slot 1 | chunks 4 | bytes 4 | CRC-32 4 | length 1 | metadata
    4 STOP      slot 1
    5 ACK       largest 4 | delay 2 | bitmap 8
    6 GOT       slot 1 | state 1 | next 4 | ranges 1 | ranges × (missing varint | come varint)
    7 FLIGHT    slot 1 | flight 1 | data 1 | parity 1 | index 1 | length 2 | shard
    8 CHALLENGE 8 bytes
    9 RESPONSE  8 bytes
    10 PING
    11 CLOSE    reason 1
    128 + count WORDS: slot 1 | first 2 | row
    64 + 16 × count + 4 × older + newer  PAIRED: slot 1 | first 2 | row | parity, to the end of the body

WORDS is DATA of 1 to 127 chunks that are all shorter than 16 bytes, as tokens are. Their row is the lengths of all, 4
bits each, the first one high, to whole bytes (a half that is left over is 0), and then the bytes of all. PAIRED is the
same of 1 to 3 chunks, and always the last block. Before its chunks there were `newer` ones, and before these `older`
ones, 1 to 3 of each; the parity is the exclusive-or of the rows of both, the shorter one filled up with zeros.
A slot is one reply; chunks are numbered from 0, and `first` is the low 16 bits of such a number: the nearest to the
next that is wanted; so at most 16384 chunks may be under way. Of a REPAIR's symbols the first has the number `symbol`,
the others follow it modulo 128; `size` is a shard's size. ACK speaks of packets: bit i of the bitmap (from the right)
is packet `largest - 1 - i`; `delay` is how long the largest waited here, in units of 100 µs. GOT speaks of chunks: all
before `next` have come; from there on, in turn, so many are missing and so many have come; bit 0 of `state` says that
the end has come and the whole text was found right, bit 1 that it was wrong. A varint is 7 bits, or 15 with the first
bit set.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import msgspec

from node.errors import LinkError

VERSION = 2
KIND, SHORT_KIND = 0x4F, 0x4E
MAX_DATAGRAM = 1200
HEAD, SHORT_HEAD = struct.Struct(">BII"), struct.Struct(">BIH")
MAX_META = 255
BITMAP = 64
DELAY_UNIT_S = 100e-6

_SHORT_SPAN = 0x4000
LONGEST_WORD, MOST_PAIRED = 0x0F, 3
_MOST_WORDS = 0x7F
_SLOT_FIRST = struct.Struct(">BH")
_SLOT_FIRST_COUNT = struct.Struct(">BHB")
_REPAIR = struct.Struct(">BHBBBB")
_END = struct.Struct(">BIIIB")
_ACK = struct.Struct(">IHQ")
_GOT = struct.Struct(">BBIB")
_FLIGHT = struct.Struct(">BBBBBH")

WORDS, PAIRED = 0x80, 0x40
PAD, DATA, REPAIR, END, STOP, ACK, GOT, FLIGHT, CHALLENGE, RESPONSE, PING, CLOSE = range(12)


class Data(msgspec.Struct, frozen=True):
    """With a `parity`, which covers the `older` and `newer` chunks before, it is the last block of its packet."""

    slot: int
    first: int
    chunks: Sequence[bytes]
    older: int = 0
    newer: int = 0
    parity: bytes = b""


class Repair(msgspec.Struct, frozen=True):
    slot: int
    first: int
    count: int
    symbol: int
    symbols: Sequence[bytes]


class End(msgspec.Struct, frozen=True):
    slot: int
    chunks: int
    size: int
    crc: int
    meta: bytes = b""


class Stop(msgspec.Struct, frozen=True):
    slot: int


class Ack(msgspec.Struct, frozen=True):
    """`delay` is in seconds."""

    largest: int
    delay: float
    bitmap: int


class Got(msgspec.Struct, frozen=True):
    """`ranges` are, from `next` on, (how many chunks are missing, how many after them have come)."""

    slot: int
    next: int
    ranges: Sequence[tuple[int, int]] = ()
    whole: bool = False
    wrong: bool = False


class Flight(msgspec.Struct, frozen=True):
    slot: int
    flight: int
    data: int
    parity: int
    index: int
    shard: bytes


class Challenge(msgspec.Struct, frozen=True):
    token: bytes


class Response(msgspec.Struct, frozen=True):
    token: bytes


class Ping(msgspec.Struct, frozen=True):
    pass


class Close(msgspec.Struct, frozen=True):
    reason: int


Block = Data | Repair | End | Stop | Ack | Got | Flight | Challenge | Response | Ping | Close


def head(connection: int, number: int, acked: int | None = None) -> bytes:
    """The head of a datagram; with `acked`, the largest number acknowledged (or -1), as short as that allows."""
    if acked is not None and number - acked < _SHORT_SPAN:
        return SHORT_HEAD.pack(SHORT_KIND, connection, number & 0xFFFF)
    return HEAD.pack(KIND, connection, number)


def read_head(datagram: bytes, following: int = 0) -> tuple[int, int, int] | None:
    """Connection, packet number and the head's size; None where it is no datagram of ours.

    `following` is one more than the largest number that has come.
    """
    if not SHORT_HEAD.size < len(datagram) <= MAX_DATAGRAM:
        return None
    if datagram[0] == SHORT_KIND:
        _, connection, low = SHORT_HEAD.unpack_from(datagram)
        number = following + (low - following + 0x8000) % 0x10000 - 0x8000
        number += 0x10000 * ((number < 0) - (number > 0xFFFFFFFF))  # no number is less than 0 or has more than 32 bits
        return connection, number, SHORT_HEAD.size
    if datagram[0] != KIND or len(datagram) <= HEAD.size:
        return None
    _, connection, number = HEAD.unpack_from(datagram)
    return connection, number, HEAD.size


def varint(value: int) -> bytes:
    """One byte below 128, else two; raises ValueError from 32768 on."""
    if value < 0x80:
        return bytes((value,))
    if value > 0x7FFF:
        raise ValueError(f"{value} is too long for a varint")
    return (0x8000 | value).to_bytes(2, "big")


def data_size(chunk: bytes) -> int:
    """Bytes that a chunk takes in a DATA block."""
    return len(chunk) + (1 if len(chunk) < 0x80 else 2)


DATA_HEAD = 1 + _SLOT_FIRST_COUNT.size
REPAIR_HEAD = 1 + _REPAIR.size
FLIGHT_HEAD = 1 + _FLIGHT.size
ACK_SIZE = 1 + _ACK.size
GOT_HEAD = 1 + _GOT.size


def encode(block: Block) -> bytes:
    """The bytes of a block; its numbers must fit their fields."""
    match block:
        case Data(parity=parity) if parity:
            return _encode_paired(block)
        case Data(slot, first, chunks):
            if 0 < len(chunks) <= _MOST_WORDS and max(map(len, chunks)) <= LONGEST_WORD:
                return _encode_words(slot, first, chunks)
            parts = [bytes((DATA,)), _SLOT_FIRST_COUNT.pack(slot, first & 0xFFFF, len(chunks))]
            for chunk in chunks:
                parts += (varint(len(chunk)), chunk)
            return b"".join(parts)
        case Repair(slot, first, count, symbol, symbols):
            sizes = _REPAIR.pack(slot, first & 0xFFFF, count, symbol, len(symbols), len(symbols[0]))
            return bytes((REPAIR,)) + sizes + b"".join(symbols)
        case End(slot, chunks, size, crc, meta):
            return bytes((END,)) + _END.pack(slot, chunks, size, crc, len(meta)) + meta
        case Stop(slot):
            return bytes((STOP, slot))
        case Ack(largest, delay, bitmap):
            return bytes((ACK,)) + _ACK.pack(largest, min(0xFFFF, round(delay / DELAY_UNIT_S)), bitmap)
        case Got():
            return _encode_got(block)
        case Flight(slot, flight, data, parity, index, shard):
            return bytes((FLIGHT,)) + _FLIGHT.pack(slot, flight, data, parity, index, len(shard)) + shard
        case Challenge(token):
            return bytes((CHALLENGE,)) + token
        case Response(token):
            return bytes((RESPONSE,)) + token
        case Ping():
            return bytes((PING,))
        case Close(reason):
            return bytes((CLOSE, reason))


def _encode_words(slot: int, first: int, chunks: Sequence[bytes]) -> bytes:
    if len(chunks) == 1:  # most packets bring one token
        return bytes((WORDS | 1, slot, first >> 8 & 0xFF, first & 0xFF, len(chunks[0]) << 4)) + chunks[0]
    return bytes((WORDS | len(chunks),)) + _SLOT_FIRST.pack(slot, first & 0xFFFF) + row(chunks)


def row(words: Sequence[bytes]) -> bytes:
    """The lengths of words, and then their bytes."""
    lengths = [*map(len, words), 0]
    halves = bytes(high << 4 | low for high, low in zip(lengths[:-1:2], lengths[1::2], strict=True))
    return b"".join((halves, *words))


def words_in(data: bytes, count: int) -> list[bytes]:
    """The words of a row that more zeros may follow; raises LinkError where it is none."""
    reader = _Reader(data)
    found = reader.words(count)
    if reader.rest.strip(b"\x00"):
        raise LinkError("There is more than the words of a row.")
    return found


def _encode_paired(block: Data) -> bytes:
    kind = PAIRED + 16 * len(block.chunks) + 4 * block.older + block.newer
    return bytes((kind,)) + _SLOT_FIRST.pack(block.slot, block.first & 0xFFFF) + row(block.chunks) + block.parity


def _encode_got(block: Got) -> bytes:
    state = block.whole | block.wrong << 1
    counts = b"".join(varint(count) for pair in block.ranges for count in pair)
    return bytes((GOT,)) + _GOT.pack(block.slot, state, block.next, len(block.ranges)) + counts


def decode(body: bytes) -> list[Block]:
    """The blocks of an opened body; raises LinkError where they are none."""
    return list(_Reader(body))


class _Reader:
    """Takes blocks from a body; every length is checked before it is used."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def __iter__(self) -> Iterator[Block]:
        while self._at < len(self._body):
            kind = self._body[self._at]
            self._at += 1
            if kind != PAD:
                yield self._block(kind)

    def _block(self, kind: int) -> Block:
        match kind:
            case 1:
                slot, first, count = self._unpack(_SLOT_FIRST_COUNT)
                return Data(slot, first, [self._bytes(self._varint()) for _ in range(count)])
            case 2:
                slot, first, count, symbol, symbols, size = self._unpack(_REPAIR)
                return Repair(slot, first, count, symbol, [self._bytes(size) for _ in range(symbols)])
            case 3:
                slot, chunks, size, crc, length = self._unpack(_END)
                return End(slot, chunks, size, crc, self._bytes(length))
            case 4:
                return Stop(self._byte())
            case 5:
                largest, delay, bitmap = self._unpack(_ACK)
                return Ack(largest, delay * DELAY_UNIT_S, bitmap)
            case 6:
                return self._got()
            case 7:
                slot, flight, data, parity, index, length = self._unpack(_FLIGHT)
                return Flight(slot, flight, data, parity, index, self._bytes(length))
            case 8:
                return Challenge(self._bytes(8))
            case 9:
                return Response(self._bytes(8))
            case 10:
                return Ping()
            case 11:
                return Close(self._byte())
        if kind > WORDS:
            slot, first = self._unpack(_SLOT_FIRST)
            return Data(slot, first, self.words(kind - WORDS))
        if WORDS > kind > PAIRED:
            return self._paired(kind)
        raise LinkError(f"There is no block of type {kind}.")

    def _paired(self, kind: int) -> Data:
        slot, first = self._unpack(_SLOT_FIRST)
        count, older, newer = kind >> 4 & 3, kind >> 2 & 3, kind & 3
        words, parity = self.words(count), self._bytes(len(self.rest))
        if not (count and older and newer and parity):
            raise LinkError("A pair of nothing.")
        return Data(slot, first, words, older, newer, parity)

    def words(self, count: int) -> list[bytes]:
        """A row of so many words."""
        halves = self._bytes((count + 1) // 2)
        lengths = [length for byte in halves for length in (byte >> 4, byte & 0x0F)]
        if sum(lengths[count:]):
            raise LinkError("A length of a word that is not there.")
        return [self._bytes(length) for length in lengths[:count]]

    @property
    def rest(self) -> bytes:
        """What was not read."""
        return self._body[self._at :]

    def _got(self) -> Got:
        slot, state, following, count = self._unpack(_GOT)
        ranges = [(self._varint(), self._varint()) for _ in range(count)]
        return Got(slot, following, ranges, bool(state & 1), bool(state & 2))

    def _unpack(self, shape: struct.Struct) -> tuple[int, ...]:
        at = self._at
        self._at += shape.size
        if self._at > len(self._body):
            raise LinkError("A block ends after its datagram.")
        return shape.unpack_from(self._body, at)

    def _varint(self) -> int:
        value = self._byte()
        return value if value < 0x80 else (value & 0x7F) << 8 | self._byte()

    def _byte(self) -> int:
        self._at += 1
        if self._at > len(self._body):
            raise LinkError("A block ends after its datagram.")
        return self._body[self._at - 1]

    def _bytes(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._body):
            raise LinkError("A block ends after its datagram.")
        found = self._body[self._at : end]
        self._at = end
        return found
