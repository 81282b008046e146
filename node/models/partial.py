"""The growing file of one pull: bounded, hashed as it grows, and resumable.

`NAME.part` holds the bytes so far and `NAME.part.json` says which part they belong to:

    part       index of the source that is being written; all before it are whole
    start      byte at which that source begins
    validator  ETag or date of that source, so that a server can tell whether it is still the same
    sha256     the file that all this is meant to become; another one voids the rest

The note is only ever written after the bytes that it vouches for. What a power cut can still do to the bytes shows in
the final hash.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from node.errors import PullError

CHUNK = 1 << 20


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    sha256: str
    part: int
    start: int
    validator: str = ""


class Partial:
    """A context manager around the open `.part` file; never holds more than `limit` bytes."""

    def __init__(self, path: Path, *, limit: int, sha256: str) -> None:
        self.path = path
        self.limit = limit
        self.position = 0
        self._note_path = path.with_name(path.name + ".json")
        self._note = self._read_note(sha256)
        self._hash = hashlib.sha256()
        self._hash_at_start = self._hash.copy()

    def __enter__(self) -> Self:
        self._file = open(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b", buffering=0)
        try:
            self._reread()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if self.position == 0:
            self.discard()

    @property
    def part(self) -> int:
        """Index of the source that is being written."""
        return self._note.part

    @property
    def start(self) -> int:
        """The byte at which the current source begins."""
        return self._note.start

    @property
    def validator(self) -> str:
        """What the server called the current source when its bytes were fetched; empty if it gave no name."""
        return self._note.validator

    @property
    def room(self) -> int:
        """Bytes that may still come."""
        return self.limit - self.position

    def write(self, chunk: bytes | memoryview) -> None:
        """Append; raises PullError once the file would outgrow its size, OSError if the disk is full."""
        if len(chunk) > self.room:
            raise OverLimit(self.limit)
        view = memoryview(chunk)
        while view:  # an unbuffered write may take less than it was given
            written = self._file.write(view)
            self._hash.update(view[:written])
            self.position += written
            view = view[written:]

    def rewind(self) -> None:
        """Forget what came from the current source."""
        self._truncate(self.start)
        self._hash = self._hash_at_start.copy()

    def name_source(self, validator: str) -> None:
        """Remember what the server calls the current source."""
        if validator != self.validator:
            self._write_note(msgspec.structs.replace(self._note, validator=validator))

    def finish_part(self) -> None:
        """The current source is whole; the next one begins here."""
        os.fsync(self._file.fileno())
        self._hash_at_start = self._hash.copy()
        self._write_note(msgspec.structs.replace(self._note, part=self.part + 1, start=self.position, validator=""))

    def hexdigest(self) -> str:
        """SHA-256 of everything written so far."""
        return self._hash.hexdigest()

    def settle(self, target: Path) -> None:
        """Give the file its final name; whole on disk before it has it."""
        os.fsync(self._file.fileno())
        os.replace(self.path, target)
        self._note_path.unlink(missing_ok=True)
        sync_folder(target.parent)

    def discard(self) -> None:
        """Leave nothing behind."""
        self.path.unlink(missing_ok=True)
        self._note_path.unlink(missing_ok=True)

    def _truncate(self, size: int) -> None:
        self._file.truncate(size)
        self._file.seek(size)
        self.position = size

    def _reread(self) -> None:
        """Take up what an earlier pull left, if it is what its note says."""
        size = os.fstat(self._file.fileno()).st_size
        if not self._note.start <= size <= self.limit:
            size = 0
            self._note = _Note(sha256=self._note.sha256, part=0, start=0)
            self._truncate(0)
        self._write_note(self._note)  # from here on the bytes count for something
        self._hash_up_to(self._note.start)
        self._hash_at_start = self._hash.copy()
        self._hash_up_to(size)

    def _hash_up_to(self, end: int) -> None:
        while self.position < end:
            chunk = self._file.read(min(CHUNK, end - self.position))
            if not chunk:
                raise OSError(f"{self.path} shrank while it was read")
            self._hash.update(chunk)
            self.position += len(chunk)

    def _read_note(self, sha256: str) -> _Note:
        fresh = _Note(sha256=sha256, part=0, start=0)
        try:
            note = msgspec.json.decode(self._note_path.read_bytes(), type=_Note)
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            note = None
        if note is None or note.sha256 != sha256 or note.part < 0 or note.start < 0:
            self.path.unlink(missing_ok=True)  # nobody knows what these bytes are
            return fresh
        return note

    def _write_note(self, note: _Note) -> None:
        temporary = self._note_path.with_name(self._note_path.name + ".new")
        try:
            temporary.write_bytes(msgspec.json.encode(note))
            os.replace(temporary, self._note_path)
        finally:
            temporary.unlink(missing_ok=True)
        self._note = note


class Rejected(PullError):
    """The bytes that came can never become this model; they are thrown away."""


class OverLimit(Rejected):
    """More bytes came than the catalogue promises."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The source holds more than the {limit:,} bytes that the catalogue promises; the download was dropped.",
            hint="The file behind this address has changed, or the catalogue entry is wrong.",
        )


def sync_folder(folder: Path) -> None:
    """Make a rename or removal in this folder last through a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
