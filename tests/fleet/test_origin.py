"""Bytes from a far place: exactly those that were asked for, or a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from node.fleet.budget import Budget
from node.fleet.origin import Missing, Origin, Trouble
from node.fleet.refusal import NotRepository, OverBudget
from tests.support.model_files import FileServer, listening, served

DATA = bytes(range(256)) * 40


async def taken(origin: Origin, start: int, end: int, name: str = "a") -> bytes:
    try:
        return b"".join([piece async for piece in origin.stream(name, start, end)])
    finally:
        await origin.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a").write_bytes(DATA)
    return tmp_path


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize(("start", "end"), [(0, len(DATA)), (0, 10), (100, 300), (len(DATA) - 1, len(DATA))])
async def test_the_bytes_that_were_asked_for(folder: Path, ranges: bool, start: int, end: int) -> None:
    async with served(FileServer(folder, ranges=ranges)) as server:
        origin = Origin(server.url, Budget())
        assert await taken(origin, start, end) == DATA[start:end]
        assert origin.budget.spent == (end - start if ranges else end)
        assert origin.ranges is (ranges or start == 0)
    assert await taken(Origin(folder.as_uri() + "/", Budget()), start, end) == DATA[start:end]


async def test_what_is_missing_or_short(folder: Path) -> None:
    async with served(FileServer(folder)) as server:
        for base in (server.url, folder.as_uri() + "/"):
            with pytest.raises(Missing):
                await taken(Origin(base, Budget()), 0, 5, "none")
            with pytest.raises(Trouble, match="too early"):
                await taken(Origin(base, Budget()), 0, len(DATA) + 5)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (lambda _: web.Response(status=503), Trouble, "answered 503"),
        (lambda _: web.Response(text="Log in", content_type="text/html"), NotRepository, "web page"),
        (lambda _: web.Response(status=206, headers={"Content-Range": "bytes 0-9/99"}, body=b"x"), Trouble, "another"),
        (lambda _: web.Response(body=b"x", headers={"Content-Encoding": "br"}), Trouble, "encoded"),
        (lambda _: web.Response(status=302, headers={"Location": "ftp://x/"}), Trouble, "redirects to where"),
        (lambda _: web.Response(status=302, headers={"Location": "/a"}), Trouble, "again and again"),
        (lambda _: web.Response(status=302, headers={"Location": "http://elsewhere.invalid/"}), Trouble, "plain http"),
    ],
)
async def test_answers_that_will_not_do(
    folder: Path, answer: Callable[[web.Request], web.Response], error: type[Exception], words: str
) -> None:
    async with served(FileServer(folder, answer)) as server:
        with pytest.raises(error, match=words):
            await taken(Origin(server.url, Budget()), 5, 9)


async def test_a_redirect_to_an_allowed_place_is_followed(folder: Path) -> None:
    async with served(FileServer(folder)) as there:
        moved = web.Response(status=302, headers={"Location": f"{there.url}a"})
        async with served(FileServer(folder, lambda _: moved)) as server:
            assert await taken(Origin(server.url, Budget()), 5, 9) == DATA[5:9]


async def test_nobody_there() -> None:
    with pytest.raises(Trouble):
        await taken(Origin("http://127.0.0.1:1/", Budget()), 0, 1)


async def test_more_than_a_way_may_cost_is_not_read(folder: Path) -> None:
    async with served(FileServer(folder, ranges=False)) as server:
        with pytest.raises(OverBudget, match="knows no ranges"):
            await taken(Origin(server.url, Budget(metered=True, limit=10**6)), 5, 9)
        with pytest.raises(OverBudget, match="more than it may"):
            await taken(Origin(server.url, Budget(limit=8)), 5, 9)
        with pytest.raises(OverBudget, match="More bytes came"):
            await taken(Origin(server.url, Budget(limit=8)), 0, 9)


async def test_a_pipe_in_the_folder_does_not_hang(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "a")
    with pytest.raises(Missing, match="is no file"):
        await taken(Origin(tmp_path.as_uri() + "/", Budget()), 0, 1)


async def test_a_server_that_drips_is_left(folder: Path) -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=206, headers={"Content-Range": f"bytes 0-{len(DATA) - 1}/{len(DATA)}"})
        await response.prepare(request)
        for _ in range(200):
            await response.write(b"x")
            await asyncio.sleep(0.05)
        return response

    app = web.Application()
    app.router.add_get("/{path:.*}", drip)
    async with listening(app) as url:
        with pytest.raises(Trouble, match="less than"):
            await taken(Origin(url + "/", Budget(), stall_s=0.5), 0, len(DATA))
