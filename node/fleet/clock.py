"""What time it may be, on machines whose clock may be anything.

    now = max(the clock, where it is synchronised; the floor and the time it ran since; when this was released)

A clock in the past would let somebody hold old metadata in front of a node for ever; one in the future refuses all. The
floor rises with every timestamp that the fleet signed and with every hour of a synchronised clock, and never falls,
except by word of the fleet's root keys.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

# Moved up with every release: no valid metadata is older than the program that reads it.
RELEASED = datetime(2026, 11, 29, tzinfo=UTC).timestamp()
_TIME_ERROR, _UNSYNCHRONISED = 5, 0x40


def reference(system: float, synced: bool, floor: float, ran: float) -> float:
    """Seconds since 1970 that count as now; `ran` is how long this machine ran since `floor` was true."""
    return max(system if synced else 0.0, floor + ran, RELEASED)


class _Timex(ctypes.Structure):
    """The beginning of the kernel's struct timex; the rest is room for it to write into."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("numbers", ctypes.c_long * 4),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 512),
    )


def synchronised() -> bool:
    """Whether the kernel's clock follows a time server (adjtimex); False where nobody can tell."""
    state = _Timex()
    try:
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(state))
    except (AttributeError, OSError):  # another system's C library
        return False
    return answer not in (-1, _TIME_ERROR) and not state.status & _UNSYNCHRONISED


def uptime() -> float:
    """Seconds that this machine ran, sleep included."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True)
class Clock:
    """Where the time comes from."""

    system: Callable[[], float] = time.time
    synced: Callable[[], bool] = synchronised
    uptime: Callable[[], float] = uptime
