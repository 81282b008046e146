"""Neighbours without a network's discovery and certificates: addresses and what they say are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import msgspec

from node.errors import Unavailable
from node.machine.heat import Heat
from node.machine.supply import Supply
from node.mesh.sight import Sight

SIGHT = Sight(
    id="a",
    version="0",
    model="echo",
    model_digest="same",
    context=8192,
    slots=8,
    free_slots=8,
    waiting=0,
    wait_s=0.0,
    prefill_s=1e-6,
    decode_s=1e-3,
)


def on_battery() -> tuple[Heat, Supply]:
    """A machine that would rather have others work."""
    return Heat(), Supply(on_battery=True)


@dataclass(frozen=True, slots=True)
class NearOne:
    """A neighbour as the table shows one."""

    id: str
    sight: Sight
    round_trip_s: float = 0.001


@dataclass
class Near:
    """Keeps `places.Neighbourhood`. Who is doubted is no candidate until `trust` is called."""

    id: str = "here"
    neighbours: dict[str, tuple[str, NearOne]] = field(default_factory=dict)
    doubted: dict[str, str] = field(default_factory=dict)
    _sessions: dict[str, aiohttp.ClientSession] = field(default_factory=dict)

    def add(self, id: str, url: str, **sight: Any) -> None:
        """One more neighbour at `url`, or the same one with another sight."""
        self.neighbours[id] = url, NearOne(id, msgspec.structs.replace(SIGHT, id=id, **sight))

    def change(self, id: str, **sight: Any) -> None:
        """It says something else of itself now."""
        url, one = self.neighbours[id]
        self.neighbours[id] = url, replace(one, sight=msgspec.structs.replace(one.sight, **sight))

    def candidates(self) -> Sequence[NearOne]:
        return [one for id, (_, one) in self.neighbours.items() if id not in self.doubted]

    def session(self, node_id: str) -> aiohttp.ClientSession:
        if node_id not in self.neighbours:
            raise Unavailable("There is no such neighbour.")
        url = self.neighbours[node_id][0]
        if url not in self._sessions:
            self._sessions[url] = aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=None))
        return self._sessions[url]

    def doubt(self, node_id: str, reason: str) -> None:
        self.doubted[node_id] = reason

    async def close(self) -> None:
        """Close what was opened."""
        for session in self._sessions.values():
            await session.close()
