"""Bounded reads of the kernel's files; what cannot be read is "" or nothing."""

from __future__ import annotations

import itertools
import os
import re
import stat
from pathlib import Path

ROOT = Path("/")
_MAX_BYTES = 64 << 10
_MAX_NAMES = 4096
_MAX_CPUS = 8192  # the kernel's own limit


def text(path: Path, most: int = _MAX_BYTES) -> str:
    """A small file's text without what surrounds it, cut after `most` bytes; "" when it cannot be read."""
    try:
        with open(path, "rb", opener=_open) as file:
            return file.read(most).decode(errors="replace").strip(" \t\n\0")
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return ""


def names(folder: Path) -> list[str]:
    """What lies in a folder, numbers in their order: zone2 before zone10."""
    try:
        with os.scandir(folder) as entries:
            found = [entry.name for entry in itertools.islice(entries, _MAX_NAMES)]
    except (OSError, ValueError):
        return []
    return sorted(found, key=_natural)


def fields(path: Path, separator: str = ":") -> dict[str, str]:
    """A file of lines like "MemTotal:  8256400 kB"."""
    return pairs(text(path), separator)


def pairs(lines: str, separator: str = ":") -> dict[str, str]:
    """The lines that have a separator, cut there."""
    cut = (line.partition(separator) for line in lines.splitlines())
    return {key.strip(): value.strip() for key, found, value in cut if found}


def number(word: str | None) -> int | None:
    """A plain decimal number, negative ones too; None for anything else."""
    return int(word) if word and re.fullmatch(r"-?[0-9]{1,19}", word) else None


def cpu_list(word: str) -> frozenset[int]:
    """The numbers in the kernel's list format, like "0-3,8"; empty when it is anything else."""
    if not re.fullmatch(r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*", word, re.ASCII):
        return frozenset()
    spans = [part.partition("-") for part in word.split(",")[:_MAX_CPUS]]
    return frozenset(cpu for low, _, high in spans for cpu in range(int(low), int(high or low) + 1) if cpu < _MAX_CPUS)


def _open(path: str, flags: int) -> int:
    """Open a regular file; a pipe in its place must not hang a probe."""
    handle = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(f"{path} is no regular file")


def _natural(name: str) -> list[tuple[int, str]]:
    parts = re.split(r"([0-9]{1,9})", name)
    return [(int(part), "") if index % 2 else (-1, part) for index, part in enumerate(parts)]
