"""Frames on a wired serial line: COBS (Cheshire and Baker, 1999) with 0x00 between them.

A line that loses or damages bytes costs the frames that it hit: what decodes to something else has a wrong CRC-32, and
the next 0x00 begins afresh.
"""

from __future__ import annotations

from node.errors import LinkError

DELIMITER = b"\x00"


def encode(data: bytes) -> bytes:
    """`data` without zero bytes, at most one byte longer for each 254, and the delimiter after it."""
    out = bytearray()
    for part in data.split(b"\x00"):
        while len(part) >= 254:
            out += b"\xff" + part[:254]
            part = part[254:]
        out.append(len(part) + 1)
        out += part
    return bytes(out + DELIMITER)


def decode(block: bytes) -> bytes:
    """What was encoded into `block`, which comes without its delimiter; raises LinkError."""
    out = bytearray()
    at, code = 0, 0
    while at < len(block):
        if at and code < 255:
            out.append(0)
        code = block[at]
        part = block[at + 1 : at + code]
        if code == 0 or len(part) != code - 1:
            raise LinkError("These bytes are not COBS.")
        out += part
        at += code
    return bytes(out)


class Reader:
    """Cuts a stream of bytes at its delimiters; holds at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = bytearray()
        self._skipping = False  # the frame became too long: what is left of it is worth nothing

    def feed(self, data: bytes) -> list[bytes | LinkError]:
        """Whole blocks decoded, in order; an error stands where a block was none."""
        found: list[bytes | LinkError] = []
        *whole, rest = data.split(DELIMITER)
        for part in whole:
            self._keep(part, found)
            self._end(found)
        self._keep(rest, found)
        return found

    def _keep(self, part: bytes, found: list[bytes | LinkError]) -> None:
        if self._skipping:
            return
        if len(self._held) + len(part) > self._limit:
            self._skipping = True
            self._held.clear()
            found.append(LinkError(f"A frame of more than {self._limit} bytes."))
            return
        self._held += part

    def _end(self, found: list[bytes | LinkError]) -> None:
        block, skipped = bytes(self._held), self._skipping
        self._held.clear()
        self._skipping = False
        if skipped or not block:
            return
        try:
            found.append(decode(block))
        except LinkError as error:
            found.append(error)
