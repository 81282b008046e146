"""The growing file of one fetch, which any kill may leave as it is.

`NAME.part` has the size of the whole from the beginning; which of its chunks are there is found by hashing them, so no
note can lie about them. `NAME.flight` is the chunk that is on its way from far, with how many bytes that way has cost
so far: a head of 74 bytes and then the bytes as they came, so that a kill costs what the network had in its hands and
no more.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from node.fleet import chunks, durable
from node.fleet.directive import ChunkIndex
from node.fleet.refusal import Busy, NoSource, NoSpace
from node.models.partial import sync_folder

_HEAD = struct.Struct("<Q64sBB")  # bytes spent before this chunk, its SHA-256, whether packed, whether it costs
_SPARE = 16 << 20  # left free on the disk, for the databases
_MOST_SPENT = 1 << 62


class Part:
    """Opened by `opened`; the lock on it keeps every other process away.

    A thread may still be at work here when its fetch is cancelled. So `close` waits for it, and what comes later is
    told that there is nothing any more: a number that was closed may mean another file by then.
    """

    def __init__(self, target: Path, index: ChunkIndex, handle: int, flight: int) -> None:
        self.index, self.target = index, target
        self.offsets = chunks.offsets(index.chunks)
        self.missing = set(range(len(index.chunks)))
        self._handle, self._flight = handle, flight
        self._turn = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """After the last use, or during it."""
        with self._turn:
            self._closed = True
            os.close(self._handle)
            os.close(self._flight)

    @contextmanager
    def _open(self) -> Iterator[None]:
        with self._turn:
            if self._closed:
                raise OSError(errno.EBADF, "the fetch has ended")
            yield

    @property
    def path(self) -> Path:
        """The growing file."""
        return part_path(self.target)

    @property
    def missing_bytes(self) -> int:
        """Bytes of the file that are not there yet."""
        return sum(self.index.chunks[number].length for number in self.missing)

    def rehash(self, report: Callable[[int], None]) -> None:
        """Find out what is there; `report` is told the bytes looked at."""
        for number, chunk in enumerate(self.index.chunks):
            with self._open():
                data = chunks.read_at(self._handle, self.offsets[number], chunk.length)
            if hashlib.sha256(data).hexdigest() == chunk.sha256:
                self.missing.discard(number)
            report(self.offsets[number] + chunk.length)

    def put(self, number: int, data: bytes) -> bool:
        """Write a chunk, if it is the right one; it counts when it is taken out of `missing`. Raises NoSpace."""
        chunk = self.index.chunks[number]
        if len(data) != chunk.length or hashlib.sha256(data).hexdigest() != chunk.sha256:
            return False
        with self._open():
            _write_at(self._handle, self.offsets[number], data)
        return True

    def read(self, number: int) -> bytes | None:
        """A chunk that is there."""
        if number in self.missing:
            return None
        with self._open():
            return chunks.read_at(self._handle, self.offsets[number], self.index.chunks[number].length)

    def settle(self) -> str:
        """Give the file its name, whole on disk before; returns its SHA-256, which is checked."""
        whole, at = hashlib.sha256(), 0
        while data := self._block(at):
            whole.update(data)
            at += len(data)
        if whole.hexdigest() != self.index.sha256 or at != self.index.size:
            self.discard()
            raise NoSource(f"Every chunk of {self.target.name} is right, but together they are another file.")
        with self._open():
            os.fsync(self._handle)
            os.replace(self.path, self.target)
            flight_path(self.target).unlink(missing_ok=True)
            sync_folder(self.target.parent)
        return whole.hexdigest()

    def _block(self, at: int) -> bytes:
        with self._open():
            return chunks.read_at(self._handle, at, chunks.MOST)

    def discard(self) -> None:
        """Leave nothing behind."""
        self.path.unlink(missing_ok=True)
        flight_path(self.target).unlink(missing_ok=True)

    # The chunk on its way.

    def spent(self) -> int:
        """Bytes that this file has cost on the way from far, over all runs."""
        head = self._flight_head()
        return head[0] + self._flown() * head[3] if head else 0

    def flying(self, number: int, packed: bool) -> bytes:
        """What an earlier run had of this chunk in this form."""
        head, chunk = self._flight_head(), self.index.chunks[number]
        if head is None or head[1:3] != (chunk.sha256, packed):
            return b""
        most = (chunk.packed if packed else chunk.length) - 1
        return chunks.read_at(self._flight, _HEAD.size, min(self._flown(), most))

    def flown(self) -> int:
        """Bytes of the chunk on its way that are here and need not come again."""
        head = self._flight_head()
        wanted = head is not None and any(self.index.chunks[number].sha256 == head[1] for number in self.missing)
        return self._flown() if wanted else 0

    def fly(self, number: int, packed: bool, kept: int, costs: bool = True) -> None:
        """A chunk begins to come; `kept` bytes of what lies there are its beginning. Does its way cost?"""
        spent = min(max(0, self.spent() - kept * costs), _MOST_SPENT)
        os.ftruncate(self._flight, _HEAD.size + kept)
        head = _HEAD.pack(spent, self.index.chunks[number].sha256.encode(), packed, costs)
        _write_at(self._flight, 0, head)

    def flew(self, at: int, data: bytes | memoryview) -> None:
        """More bytes of it, `at` bytes after its beginning."""
        _write_at(self._flight, _HEAD.size + at, data)

    def _flown(self) -> int:
        return max(0, os.fstat(self._flight).st_size - _HEAD.size)

    def _flight_head(self) -> tuple[int, str, bool, bool] | None:
        raw = chunks.read_at(self._flight, 0, _HEAD.size)
        if len(raw) < _HEAD.size:
            return None
        spent, digest, packed, costs = _HEAD.unpack(raw)
        return spent, digest.decode("ascii", "replace"), bool(packed), bool(costs)


@contextmanager
def opened(target: Path, index: ChunkIndex) -> Iterator[Part]:
    """The part of that file, with its space reserved. Raises Busy, NoSpace, OSError."""
    durable.make_folder(target.parent)
    path = part_path(target)
    fresh = not path.exists()
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        _lock(handle, path)
        _reserve(handle, path, index.size, fresh)
        flight = os.open(flight_path(target), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except BaseException:
        os.close(handle)
        raise
    there = Part(target, index, handle, flight)
    try:
        yield there
    finally:
        there.close()


def is_growing(target: Path) -> bool:
    """Whether some process fetches that file right now."""
    try:
        handle = os.open(part_path(target), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def part_path(target: Path) -> Path:
    """The growing file of a target."""
    return target.with_name(f"{target.name}.part")


def flight_path(target: Path) -> Path:
    """The chunk on its way to a target."""
    return target.with_name(f"{target.name}.flight")


def _lock(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Busy(f"{path.name} is being fetched by another process.") from error


def _reserve(handle: int, path: Path, size: int, fresh: bool) -> None:
    """Have the disk's space before the first byte comes, or be as if nothing had been tried."""
    try:
        has = os.fstat(handle).st_blocks * 512
        free = shutil.disk_usage(path.parent).free
        if max(0, size - has) + _SPARE > free:
            raise OSError(errno.ENOSPC, "too full")
        os.ftruncate(handle, size)
        os.posix_fallocate(handle, 0, size)
    except OSError as error:
        if fresh:
            path.unlink(missing_ok=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise NoSpace(
            f"There is not enough room in {path.parent} for {size:,} bytes: {free:,} are free.",
            hint="Remove a model that is not used: outpost models remove NAME",
        ) from error


def _write_at(handle: int, offset: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    try:
        while view:
            written = os.pwrite(handle, view, offset)
            offset += written
            view = view[written:]
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace("The disk became full while a file was fetched.") from error
        raise
