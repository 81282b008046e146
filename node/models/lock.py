"""One pull or removal of a model at a time, over all processes: a lock file that goes when it is let go."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def held(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file; `waiting` is called once if another holds it, and may raise to give up. Raises OSError."""
    handle = _acquire(path, waiting)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # before the lock is let go, so that nobody locks a name that is about to vanish
        os.close(handle)


def _acquire(path: Path, waiting: Callable[[], None]) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(handle, waiting)
        except BaseException:
            os.close(handle)
            raise
        if _is_still(handle, path):
            return handle
        os.close(handle)  # its last holder removed it while we waited: lock the file that has the name now


def _lock(handle: int, waiting: Callable[[], None]) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waiting()
        fcntl.flock(handle, fcntl.LOCK_EX)


def _is_still(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
