"""The page's decoder of full frames in a real Chromium: the vectors, and an answer that came in frames."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.link.vectors.make import HERE
from tests.support.page_visit import chromium, visit, visit_at
from tests.test_transport import kit, slowly

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = pytest.mark.asyncio(loop_scope="module")

_DECODE = """async (given) => {
    const { decode, crc32 } = await import("/page/frame.js");
    const hex = (bytes) => [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    const buffer = (text) => Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16)).buffer;
    return given.map((text) => {
        try {
            const { kind, stream, seq, payload, flags, meta } = decode(buffer(text));
            const told = meta.map(([type, bytes]) => [type, hex(bytes)]);
            return { kind, stream: String(stream), seq, payload: hex(payload), flags, meta: told };
        } catch (error) {
            return error.name;
        }
    });
}"""
_SPY = """
    window.kinds = [];
    const Plain = window.WebSocket;
    window.WebSocket = class extends Plain {
        constructor(...all) {
            super(...all);
            this.addEventListener("message", ({ data }) => window.kinds.push(typeof data));
        }
    };
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


async def decoded(browser: Browser, frames: list[str]) -> Any:
    async with visit(browser) as v:
        return await v.page.evaluate(_DECODE, frames)


async def test_the_vectors_are_read_as_they_are_said(browser: Browser) -> None:
    stored = json.loads((HERE / "frames.json").read_text())["frames"]
    found = await decoded(browser, [one["frame"] for one in stored])
    assert found == [{key: value for key, value in one.items() if key != "frame"} for one in stored]


async def test_what_is_no_frame_is_refused(browser: Browser) -> None:
    stored = json.loads((HERE / "frames.json").read_text())["refused"]
    found = await decoded(browser, [one["bytes"] for one in stored])
    assert dict(zip([one["why"] for one in stored], found, strict=True)) == {one["why"]: "RangeError" for one in stored}


async def test_an_answer_comes_in_frames(browser: Browser, tmp_path: Path) -> None:
    async with kit(tmp_path, *slowly(0.01), **{"server.api_keys": ""}) as k:
        async with visit_at(browser, k.cable.url + "/", script=_SPY) as v:
            await v.ask("hello")
            await v.done()
            assert set(await v.page.evaluate("window.kinds")) == {"object"}, "binary, all of them"
            assert await v.text(".answer")
