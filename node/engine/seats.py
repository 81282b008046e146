"""Sequence ids of the KV cache, and how they are shared out.

llama.cpp numbers the sequences of a context from 0 to 255. A request keeps one for as long as it lives, also while it
is held. Requests have the first ids: `slots` may run, and as many more may be parked beside them. The `SPARE` ids after
those belong to no request: one is for reading prefixes that shall be warm, states pass through the other.
"""

from __future__ import annotations

from node.errors import EngineFailed

MOST_SEQUENCES = 256  # LLAMA_MAX_SEQ
SPARE = 2
MOST_SLOTS = (MOST_SEQUENCES - SPARE) // 2


def parked(slots: int) -> int:
    """How many held requests there may be beside `slots` that run."""
    return slots


def sequences(slots: int) -> int:
    """How many sequence ids the requests of `slots` need."""
    return slots + parked(slots)


def need_slot(running: int, slots: int) -> None:
    """Raise EngineFailed unless one more request may run; the caller counts, so this is a fault of the node."""
    if running >= slots:
        raise EngineFailed(f"All {slots} slots are taken; a request must end or be held before another one runs.")


def need_seat(requests: int, slots: int) -> None:
    """Raise EngineFailed unless one more request may be here at all, running or held."""
    most = slots + parked(slots)
    if requests >= most:
        raise EngineFailed(
            f"There are {requests} requests, of {slots} that may run and {most - slots} that may be held."
        )
