"""A node of a fleet as its neighbours see it, without a model: for tests in one process, over loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from node.mesh.neighbours import Neighbours
from node.mesh.sight import Sight
from node.settings import Mesh
from tests.mesh.sights import sight


class Still:
    """A portrait that says what it is told to say."""

    def __init__(self, **says: Any) -> None:
        self.says = says

    def draw(self, key: bytes) -> Sight:
        return sight("", **self.says)

    async def watch(self) -> None:
        await asyncio.Event().wait()


async def started(folder: Path, peers: Sequence[str] = (), portrait: Still | None = None, **more: Any) -> Neighbours:
    """A running neighbour on a free port that is found by its address only."""
    settings = Mesh(port=0, discover=False, peers=tuple(peers), **more)
    neighbours = Neighbours(settings, folder, portrait or Still())
    await neighbours.start()
    return neighbours


async def until(true: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait until it is; raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.02)
