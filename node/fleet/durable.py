"""A small file that is whole on disk before it has its name, and keeps both through a power cut."""

from __future__ import annotations

import os
from pathlib import Path

from node.models.partial import sync_folder


def write(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace or make the file; raises OSError and then leaves what was there."""
    temporary = path.with_name(f".{path.name}.new")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        with open(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)  # one that a killed run left may have another
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Make the folder and those above it, and make each of them last; raises OSError."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)
