"""A flight: many chunks that are ready at once (a backlog after a cut), in full packets with parity packets.

Data shards are rows of DATA blocks, padded to the same size; parity shards are repair symbols of `fec` over them. Any
`data` of the shards give them all, so that a lost packet costs no round trip.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from math import comb

from node.errors import LinkError
from node.link.fec import Symbol, recover, repair_symbol

MAX_FLIGHT = 32  # data shards of a flight
SHARD = 1100  # bytes of a data shard
_FAILURE = 2e-3  # probability that more shards are lost than parity shards were sent


@functools.cache
def _parity(data: int, loss_per_thousand: int) -> int:
    p = loss_per_thousand / 1000
    for parity in range(MAX_FLIGHT):
        total = data + parity
        fine = sum(comb(total, lost) * p**lost * (1 - p) ** (total - lost) for lost in range(parity + 1))
        if 1 - fine < _FAILURE:
            return parity
    return MAX_FLIGHT


def parity_for(data: int, loss: float) -> int:
    """The least number of parity shards with which a flight of `data` shards arrives, but for 2 in 1,000."""
    return _parity(data, min(500, max(1, round(loss * 1000))))


def shards(rows: Sequence[bytes], parity: int) -> list[bytes]:
    """`rows` of blocks, padded to one size, and `parity` shards after them."""
    size = max(map(len, rows))
    padded = [row.ljust(size, b"\x00") for row in rows]
    return padded + [repair_symbol(padded, 0, index) for index in range(parity)]


def join(came: Mapping[int, bytes], data: int) -> dict[int, bytes]:
    """All `data` data shards from at least as many of any kind; raises LinkError where they contradict each other."""
    known = {index: shard for index, shard in came.items() if index < data}
    symbols = [Symbol(index - data, 0, data, shard) for index, shard in came.items() if index >= data]
    whole = known | recover(symbols, known)
    if len(whole) < data:
        raise LinkError("The shards of a flight do not fit together.")
    return whole
