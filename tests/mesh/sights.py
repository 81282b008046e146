"""What neighbours say, and a neighbourhood that never changes by itself, for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import aiohttp

from node.errors import Unavailable
from node.mesh import sketch
from node.mesh.peers import Neighbour
from node.mesh.sight import Sight

KEY = b"of the test's fleet"  # draw sketches with it: sketch.draw(KEY, [(tenant, tokens)])


def sight(node_id: str, **more: Any) -> Sight:
    """What an idle node of four slots says."""
    values: dict[str, Any] = {
        "version": "0.1.0",
        "model": "echo",
        "model_digest": "echo",
        "context": 4096,
        "slots": 4,
        "free_slots": 4,
        "waiting": 0,
        "wait_s": 0.0,
        "prefill_s": 0.001,
        "decode_s": 0.01,
    }
    return Sight(id=node_id, **(values | more))


class Fixed:
    """A Neighbourhood of these nodes; `urls` says where they really listen, by id, over plain HTTP."""

    def __init__(self, own_id: str, sights: Iterable[Sight], urls: dict[str, str] | None = None) -> None:
        self.id = own_id
        self.sights = {each.id: each for each in sights}
        self.urls = urls or {}
        self.doubted: dict[str, str] = {}
        self._sessions: dict[str, aiohttp.ClientSession] = {}

    def candidates(self) -> list[Neighbour]:
        return [
            Neighbour(each.id, self._url(each.id), each, 0.5, "alive", 0.001)
            for each in self.sights.values()
            if each.id not in self.doubted
        ]

    def session(self, node_id: str) -> aiohttp.ClientSession:
        if node_id not in self.sights:
            raise Unavailable(f"{node_id} is no neighbour.")
        if node_id not in self._sessions:
            self._sessions[node_id] = aiohttp.ClientSession(self._url(node_id))
        return self._sessions[node_id]

    def doubt(self, node_id: str, reason: str) -> None:
        self.doubted[node_id] = reason

    def warm_tokens(self, prompt: Sequence[int], tenant: str) -> Callable[[Sight], int]:
        wanted = sketch.marks(KEY, prompt, tenant)
        return lambda each: sketch.warm_tokens(each.sketch, wanted)

    async def close(self) -> None:
        """Close what was opened."""
        for session in self._sessions.values():
            await session.close()

    def _url(self, node_id: str) -> str:
        return self.urls.get(node_id, f"https://{node_id}.mesh:8470")
