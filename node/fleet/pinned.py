"""A model file that was verified and is the very one that is loaded.

Between a check of a path and a load of that path the file may be exchanged. So the file is opened once, its bytes are
hashed through that descriptor, and the engine gets a path that means this descriptor (`/proc/self/fd/N`): whatever is
renamed over the name, it maps what was hashed. What is left is somebody who writes into the very file: its size and
time are looked at again after the load. Files are installed by renaming, so nothing of ours does that; and who
may write there as this user could as well write into the memory that is mapped.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path

from node.errors import ModelFileError

_CHUNK = 1 << 20
_BY_DESCRIPTOR = Path("/proc/self/fd")


class Pinned:
    """An open, verified file; `path` is what to load. Raises ModelFileError where it is not what was promised."""

    def __init__(self, path: Path, sha256: str) -> None:
        """Opens and hashes it, which takes a second for half a gigabyte: call it in a thread."""
        self.named = path
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ModelFileError(f"Cannot read {path}: {error.strerror}.") from error
        try:
            self._state = self._look()
            found = self._digest()
            self.check()
        except BaseException:
            self.close()
            raise
        if found != sha256:
            self.close()
            raise ModelFileError(
                f"{path} is not the file that was promised: its SHA-256 differs.\n"
                f"  promised {sha256}\n  found    {found}",
                hint="It is damaged, or another one. `outpost models pull` or the fleet brings the right one.",
            )
        self.sha256 = found

    @property
    def path(self) -> Path:
        """What means this file and no other, as long as it is not closed."""
        by_descriptor = _BY_DESCRIPTOR / str(self._handle)
        return by_descriptor if by_descriptor.exists() else self.named  # elsewhere `check` alone has to do

    def check(self) -> None:
        """After a load: raise ModelFileError if somebody has written into the file since it was opened."""
        if self._look() != self._state:
            raise ModelFileError(
                f"{self.named} was changed while it was read.", hint="Nothing may write into an installed model file."
            )

    def close(self) -> None:
        """What is mapped stays so; safe to call twice."""
        with contextlib.suppress(OSError):
            os.close(self._handle)
        self._handle = -1

    def _look(self) -> tuple[int, ...]:
        """Which file it is, how long, and as of when; by its name where that is what is loaded."""
        try:
            found = os.stat(self.named) if self.path == self.named else os.fstat(self._handle)
        except OSError as error:
            raise ModelFileError(f"Cannot read {self.named}: {error.strerror}.") from error
        if not stat.S_ISREG(found.st_mode):
            raise ModelFileError(f"{self.named} is no file.")
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def _digest(self) -> str:
        hashed, at = hashlib.sha256(), 0
        try:
            while block := os.pread(self._handle, _CHUNK, at):
                hashed.update(block)
                at += len(block)
        except OSError as error:
            raise ModelFileError(f"Cannot read {self.named}: {error.strerror}.") from error
        return hashed.hexdigest()
