"""The neighbours' port: what it answers, to whom, and within which bounds."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from node.errors import Overloaded, SettingsError
from node.mesh.handshake import MeshContext, Refusals, client_context, renew, server_context
from node.mesh.listener import MAX_BODY_BYTES, PEER, PORT_HEADER, Listener
from tests.mesh.fleets import Fleet
from tests.mesh.nodes import until


class Stage:
    """A listener, somebody who may call it, and what it noted."""

    def __init__(self, folder: Path) -> None:
        self.fleet = Fleet(folder)
        self.own, self.caller = self.fleet.node("own"), self.fleet.node("caller")
        self.context: MeshContext = server_context(self.own, Refusals())
        self.called: list[tuple[str, str, int]] = []
        self.listener = Listener(self.context, lambda have: b"have " + have.encode(), lambda: b"list", self._called)

    def _called(self, node_id: str, address: str, port: int) -> None:
        self.called.append((node_id, address, port))

    @asynccontextmanager
    async def session(self) -> AsyncIterator[aiohttp.ClientSession]:
        port = await self.listener.start(0, [self._more])
        context = client_context(self.caller, Refusals(), self.own.id)
        connector = aiohttp.TCPConnector(ssl=context)
        try:
            async with aiohttp.ClientSession(f"https://127.0.0.1:{port}", connector=connector) as session:
                yield session
        finally:
            await self.listener.stop()

    def _more(self, app: web.Application) -> None:
        async def who(request: web.Request) -> web.Response:
            return web.Response(text=request[PEER])

        async def full(request: web.Request) -> web.Response:
            raise Overloaded("No room.", retry_after=3)

        async def broken(request: web.Request) -> web.Response:
            raise ZeroDivisionError("secret")

        async def size(request: web.Request) -> web.Response:
            return web.Response(text=str(len(await request.read())))

        app.router.add_get("/mesh/who", who)
        app.router.add_get("/mesh/full", full)
        app.router.add_get("/mesh/broken", broken)
        app.router.add_post("/mesh/size", size)


async def test_status_and_other_rooms_routes(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.session() as session:
        async with session.get("/mesh/status?have=abc") as response:
            assert (response.status, await response.read()) == (200, b"have abc")
        async with session.get("/mesh/denied") as response:
            assert await response.read() == b"list"
        async with session.get("/mesh/who") as response:
            assert await response.text() == stage.caller.id
    assert stage.called == []


async def test_errors_are_told_in_json(tmp_path: Path) -> None:
    async with Stage(tmp_path).session() as session:
        async with session.get("/mesh/full") as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "3")
            error = (await response.json())["error"]
            assert (error["message"], error["code"], error["retryable"]) == ("No room.", "queue_full", True)
        async with session.get("/mesh/broken") as response:
            assert response.status == 500
            assert "secret" not in await response.text()
        async with session.get("/v1/models") as response:
            assert response.status == 404
        async with session.post("/mesh/status") as response:
            assert response.status == 405


async def test_bodies_are_bounded(tmp_path: Path) -> None:
    async with Stage(tmp_path).session() as session:
        async with session.post("/mesh/size", data=b"x" * 1000) as response:
            assert await response.text() == "1000"
        async with session.post("/mesh/size", data=io.BytesIO(bytes(MAX_BODY_BYTES + 1))) as response:
            assert response.status == 413


async def test_a_caller_is_noted_with_the_port_it_names(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.session() as session:
        for port in ("8471", "0", "65536", "x", "-1", "999999", ""):
            async with session.get("/mesh/status", headers={PORT_HEADER: port}):
                pass
    assert len(stage.called) == 1
    node_id, address, port = stage.called[0]
    assert (node_id, port) == (stage.caller.id, 8471)
    assert address.endswith("127.0.0.1")


async def test_a_watch_is_answered_when_there_is_something_to_tell(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.session() as session:

        async def watch() -> int:
            async with session.get("/mesh/status?wait=60") as response:
                return response.status

        watching = [asyncio.create_task(watch()) for _ in range(2)]
        await until(lambda: stage.listener._watching.total() == 2)
        stage.listener.hurry()
        assert await asyncio.gather(*watching) == [200, 200]
        later = asyncio.create_task(watch())
        await until(lambda: stage.listener._watching.total() == 1)  # one that begins later waits again
        later.cancel()


async def test_a_watch_is_answered_after_its_time(tmp_path: Path) -> None:
    async with Stage(tmp_path).session() as session, session.get("/mesh/status?wait=0.05") as response:
        assert response.status == 200


@pytest.mark.parametrize("wait", ["x", "-1", "301", "nan", "inf"])
async def test_waits_that_cannot_be(tmp_path: Path, wait: str) -> None:
    async with Stage(tmp_path).session() as session, session.get(f"/mesh/status?wait={wait}") as response:
        assert response.status == 400


async def test_nobody_watches_more_than_a_few_times(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.session() as session:

        async def watch() -> int:
            async with session.get("/mesh/status?wait=60") as response:
                return response.status

        watching = [asyncio.create_task(watch()) for _ in range(4)]
        await until(lambda: stage.listener._watching.total() == 4)
        assert await watch() == 503
        stage.listener.hurry()
        assert await asyncio.gather(*watching) == [200] * 4


async def test_an_open_connection_of_one_that_is_denied_by_now(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.session() as session:
        async with session.get("/mesh/who") as response:
            assert response.status == 200
        denied, _ = stage.fleet.authority.deny("caller")
        renew(stage.context, dataclasses.replace(stage.own, denied=denied))
        async with session.get("/mesh/who") as response:
            assert response.status == 403
            assert "denied" in await response.text()
        with pytest.raises(aiohttp.ClientError):
            await session.get("/mesh/who")  # on a new connection, since that one was closed


async def test_a_port_that_is_taken(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    with socket.create_server(("", 0)) as taken:
        with pytest.raises(SettingsError, match="Cannot listen for neighbours"):
            await stage.listener.start(taken.getsockname()[1])
    await stage.listener.stop()
