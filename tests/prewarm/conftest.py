"""An echo engine in its thread, with a store of states, for whoever keeps prefixes warm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from node.engine.blocks import BlockStore, Ids
from node.engine.echo import EchoEngine
from node.engine.worker import Worker
from node.prewarm.stock import Stock
from node.settings import Engine

StartStock = Callable[..., Awaitable[tuple[Stock, Worker]]]


def text(words: str) -> Ids:
    """Its bytes, as the echo engine's tokens."""
    return np.frombuffer(words.encode(), np.uint8).astype(np.int32)


class Slow(EchoEngine):
    """Reading looks slower than loading, as it is with a real model."""

    def __init__(self, store: BlockStore) -> None:
        super().__init__(Engine(kind="echo"), "echo", store)
        assert self._warm
        self._warm.prefill_s = 1.0


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what happens elsewhere."""
    while not condition():  # noqa: ASYNC110  # a condition is no event
        await asyncio.sleep(0.001)


@pytest.fixture
async def start_stock(tmp_path: Path) -> AsyncIterator[StartStock]:
    """Start a worker with an echo engine and the stock around its store; `disk=False` leaves out the shelf."""
    workers: list[Worker] = []

    async def start(budget: int = 1 << 20, *, disk: bool = True, fingerprint: str = "print") -> tuple[Stock, Worker]:
        store = BlockStore(budget)
        worker = Worker(lambda: Slow(store))
        await worker.start()
        workers.append(worker)
        stock = Stock(store, worker.on_engine)
        await stock.ask_engine()
        if disk:
            await stock.open_shelf(tmp_path / "states", lambda folder: fingerprint)
        return stock, worker

    yield start
    for worker in workers:
        await worker.stop()
