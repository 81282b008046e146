"""Hubs as nodes meet them: a good one, and everything that may stand in its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from node.mesh import parcel
from node.store.outbox import Outbox

Answer = Callable[[web.Request, parcel.Parcel | None], Awaitable[web.StreamResponse]]


async def until(true: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait until it is so."""
    async with asyncio.timeout(seconds):
        while True:
            if true():
                return
            await asyncio.sleep(0.01)


async def emptied(outbox: Outbox) -> None:
    """Wait until nothing waits."""
    async with asyncio.timeout(60):
        while True:
            if not (await outbox.look())["waiting"]:
                return
            await asyncio.sleep(0.02)


class FakeHub:
    """Keeps every item that it acknowledges, doubles included. `answer` changes what it says."""

    def __init__(self) -> None:
        self.items: list[parcel.Sent] = []
        self.requests = 0
        self.sizes: list[int] = []
        self.keys: list[str] = []
        self.answer: Answer = self.accept
        self.came = asyncio.Event()

    @property
    def ids(self) -> list[str]:
        return [item.id for item in self.items]

    @property
    def bodies(self) -> list[bytes]:
        return [item.body for item in self.items]

    async def accept(self, request: web.Request, sent: parcel.Parcel | None) -> web.StreamResponse:
        assert sent is not None
        self.items += sent.items
        return web.Response(body=parcel.receipt([item.id for item in sent.items]))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        raw = await request.read()
        self.sizes.append(len(raw))
        self.keys.append(request.headers.get("Authorization", ""))
        self.came.set()
        return await self.answer(request, parcel.unpack(raw) if request.path == parcel.PATH else None)


@asynccontextmanager
async def hub(fake: FakeHub, port: int = 0) -> AsyncIterator[str]:
    """The hub on a real port; yields its address."""
    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{anything:.*}", fake.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
        host, bound = runner.addresses[0][:2]
        yield f"http://{host}:{bound}"
    finally:
        await runner.cleanup()
