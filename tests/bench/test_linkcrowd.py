"""A crowd of clients on links of their own, against real nodes: every text whole and exact, and nobody starves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from node.bench.linkcrowd import Crowd, Heard
from node.errors import EngineFailed
from node.runtime import Node

Start = Callable[..., Awaitable[Node]]


@asynccontextmanager
async def asking(node: Node, clients: int, tokens: int) -> AsyncIterator[Crowd]:
    crowd = Crowd(node.url, clients, tokens)
    try:
        await crowd.open()
        await crowd.ask(0.0)
        yield crowd
    finally:
        crowd.close()
        crowd.close()


async def test_every_text_is_exact(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", engine_slots=64, link_enabled=True)
    async with asking(node, 40, 60) as crowd:
        await crowd.until(lambda one: one.ended == 40, 60)
        assert all(heard.exact for heard in crowd.heard.values())
        assert len({heard.expected for heard in crowd.heard.values()}) == 40
        assert crowd.begun == 40
        assert crowd.datagrams > 80


async def test_a_late_loop_makes_chunks_grow_and_starves_nobody(start_node: Start) -> None:
    """The engine goes on while the event loop is kept busy: what has come meanwhile travels together."""
    node = await start_node(engine_kind="echo", engine_slots=64, engine_echo_rate=500, link_enabled=True)
    async with asking(node, 30, 200) as crowd:
        await crowd.until(lambda one: one.begun == 30, 60)
        while not crowd.ended:
            time.sleep(0.04)  # noqa: ASYNC251  # the loop of both ends is late on purpose
            await asyncio.sleep(0.001)
        await crowd.until(lambda one: one.ended == 30, 60)
        heards = list(crowd.heard.values())
        assert all(heard.exact for heard in heards)
        assert all(max(heard.sizes) >= 10 for heard in heards), "each had its share of every late turn"
        assert all(len(heard.sizes) <= 100 for heard in heards)


async def test_a_refusal_is_told(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True)
    async with asking(node, 1, 100_000) as crowd:
        with pytest.raises(EngineFailed, match="refused"):
            await crowd.until(lambda one: one.ended == 1, 60)


async def test_patience_ends(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", link_enabled=True)
    async with asking(node, 1, 10) as crowd:
        with pytest.raises(TimeoutError):
            await crowd.until(lambda one: False, 0.05)


def test_tokens_of_one_chunk_came_together() -> None:
    heard = Heard("abcdef", [1.0, 2.0, 9.0], [1, 3, 2], ["a", "bcd", "ef"])
    assert heard.arrivals(0.5, 5.0) == [1.0, 2.0, 2.0, 2.0]
    assert not heard.exact
    heard.whole = True
    assert heard.exact
    heard.pieces[1] = "bxd"
    assert not heard.exact
