"""A small window that moves forwards over a file of any size; no length is believed before it fits the file."""

from __future__ import annotations

import os
import struct
from io import FileIO, RawIOBase

from node.errors import ModelFileError

_WINDOW = 1 << 18
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Window:
    """Reads little-endian numbers and length-prefixed texts; raises ModelFileError, or OSError from the disk."""

    def __init__(self, file: FileIO | RawIOBase) -> None:
        self._file = file
        self.size = file.seek(0, os.SEEK_END)
        self._base = 0  # where in the file the buffer begins
        self._buffer = b""
        self._at = 0  # in the buffer; may point beyond it after a skip

    @property
    def position(self) -> int:
        """The byte of the file that comes next."""
        return self._base + self._at

    def take(self, count: int) -> bytes:
        """The next bytes; at most one window of them can be asked for."""
        self._need(count)
        taken = self._buffer[self._at : self._at + count]
        self._at += count
        return taken

    def skip(self, count: int) -> None:
        """Pass over bytes without reading them."""
        if count > self.size - self.position:
            raise self._truncated()
        self._at += count

    def u32(self) -> int:
        """An unsigned number of four bytes."""
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        """An unsigned number of eight bytes."""
        return int(_U64.unpack(self.take(8))[0])

    def text(self, limit: int, what: str) -> str:
        """A text that must be UTF-8 of at most `limit` bytes."""
        length = self.u64()
        if length > limit:
            raise ModelFileError(f"{what} claims to be {length} bytes long (at most {limit} can be)")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise ModelFileError(f"{what} is not UTF-8") from error

    def text_cut(self, limit: int) -> str:
        """The beginning of a text of any length."""
        length = self.u64()
        if length > self.size - self.position:
            raise self._truncated()
        kept = self.take(min(length, limit)).decode(errors="replace")
        self.skip(length - min(length, limit))
        return kept

    def skip_texts(self, count: int) -> None:
        """Pass over texts; written for speed, since a vocabulary has a hundred thousand of them."""
        unpack = _U64.unpack_from
        while count:
            self._need(8)
            buffer, at = self._buffer, self._at
            last = len(buffer) - 8
            while count and at <= last:
                at += 8 + unpack(buffer, at)[0]
                count -= 1
            self._at = at
            if self.position > self.size:
                raise self._truncated()

    def _need(self, count: int) -> None:
        """Have this many bytes in the buffer from where we are."""
        if self._at + count <= len(self._buffer):
            return
        if count > self.size - self.position:
            raise self._truncated()
        self._base, self._at = self.position, 0
        self._file.seek(self._base)
        self._buffer = self._file.read(max(_WINDOW, count)) or b""
        if len(self._buffer) < count:  # cut while we look at it
            raise self._truncated()

    def _truncated(self) -> ModelFileError:
        return ModelFileError(f"truncated: its header goes on beyond the end of the file ({self.size:,} bytes)")
