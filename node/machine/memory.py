"""Memory of the machine, cut down to what the container leaves."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from node.machine.cpu import control_groups
from node.machine.files import ROOT, fields, number, text

_UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as a number near 2**63


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes: in the machine, free for use by this process, and the container's limit. None is unknown or no limit."""

    total: int | None
    available: int | None
    limit: int | None

    @property
    def most(self) -> int | None:
        """What this process could ever have."""
        return min((bytes_ for bytes_ in (self.total, self.limit) if bytes_ is not None), default=None)


def memory(root: Path = ROOT) -> Memory:
    """Memory as this process may use it now."""
    known = fields(root / "proc/meminfo")
    total, free = _kibibytes(known.get("MemTotal")), _kibibytes(known.get("MemAvailable") or known.get("MemFree"))
    limit = None
    for folder in control_groups(root, "memory"):
        most = number(text(folder / "memory.max") or text(folder / "memory.limit_in_bytes"))
        if most is None or not 0 <= most < _UNLIMITED:
            continue
        limit = most if limit is None else min(limit, most)
        room = max(0, most - _in_use(folder))
        free = room if free is None else min(free, room)
    return Memory(total, free, limit if total is None or limit is None or limit < total else None)


def resident(root: Path = ROOT) -> int | None:
    """Bytes of this process that are in memory now."""
    return _kibibytes(fields(root / "proc/self/status").get("VmRSS"))


def most_resident(process: int, root: Path = ROOT) -> int | None:
    """The most bytes of a process that ever were in memory at once; None once it is gone."""
    return _kibibytes(fields(root / f"proc/{process}/status").get("VmHWM"))


def _in_use(folder: Path) -> int:
    """Bytes that a control group holds and cannot drop; cached files that nobody used lately can go."""
    used = number(text(folder / "memory.current") or text(folder / "memory.usage_in_bytes")) or 0
    counts = fields(folder / "memory.stat", " ")
    return max(0, used - (number(counts.get("total_inactive_file") or counts.get("inactive_file")) or 0))


def _kibibytes(field: str | None) -> int | None:
    found = re.fullmatch(r"([0-9]{1,18})( kB)?", field or "")
    return int(found[1]) * 1024 if found else None
