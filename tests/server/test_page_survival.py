"""The page over a cable that is pulled, in a real Chromium, with the real application behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from node import errors
from tests.support.cable import until
from tests.support.page_visit import Visit, chromium, visit_at
from tests.test_transport import KEY, WHOLE, Kit, kit, slowly

if TYPE_CHECKING:
    from playwright.async_api import Browser

NO_SOCKETS = "window.WebSocket = class { constructor() { setTimeout(() => this.onclose()); } close() {} };"
TRANSPORTS = pytest.mark.parametrize("script", ["", NO_SOCKETS], ids=["ws", "sse"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@asynccontextmanager
async def opened(
    browser: Browser, folder: Path, *steps: Any, script: str = "", flags: Any = None, **options: Any
) -> AsyncIterator[tuple[Visit, Kit]]:
    async with (
        kit(folder, *(steps or slowly(0.01)), **{"server.api_keys": "", **(flags or {})}) as k,
        visit_at(browser, k.cable.url + "/", script=script, **options) as v,
    ):
        v.refusals = True  # a cut connection is an error on Chromium's console
        yield v, k


async def whole(v: Visit, k: Kit) -> None:
    """The answer is there, once, and nobody was told of any trouble."""
    await v.sees(".answer", "word119")
    await v.done()
    assert (await v.text(".answer")).strip() == WHOLE.strip()
    assert await v.page.locator(".notice").count() == 0
    assert await v.text(".link") == ""
    assert len(k.source.submitted) == 1


@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="module")
class TestTheCable:
    @TRANSPORTS
    async def test_a_cut_in_the_middle_is_only_a_pause(self, browser: Browser, tmp_path: Path, script: str) -> None:
        async with opened(browser, tmp_path, script=script) as (v, k):
            await v.ask("hello")
            for word in ("word9", "word40", "word70"):
                await v.sees(".answer", word)
                k.cable.cut()
            await whole(v, k)
            await v.sees(".count", "120 tokens")

    @TRANSPORTS
    async def test_a_pulled_cable_is_quietly_told_and_waited_for(
        self, browser: Browser, tmp_path: Path, script: str
    ) -> None:
        async with opened(browser, tmp_path, script=script) as (v, k):
            await v.ask("hello")
            await v.sees(".answer", "word9")
            k.cable.pull()
            await asyncio.sleep(0.5)
            assert await v.text(".link") == ""
            await v.sees(".link", "reconnecting…")
            assert await v.page.locator(".answer.live").count() == 1
            k.cable.plug()
            await whole(v, k)

    async def test_a_screen_that_is_offline_knows_when_it_is_back(self, browser: Browser, tmp_path: Path) -> None:
        async with opened(browser, tmp_path) as (v, k):
            await v.ask("hello")
            await v.sees(".answer", "word9")
            await v.page.context.set_offline(True)
            await v.sees(".link", "reconnecting…")
            await v.page.context.set_offline(False)
            await whole(v, k)

    async def test_after_two_minutes_the_reader_decides(self, browser: Browser, tmp_path: Path) -> None:
        async with opened(browser, tmp_path) as (v, k):
            await v.page.clock.install()
            await v.ask("hello")
            await v.sees(".answer", "word9")
            k.cable.pull()
            await v.sees(".link", "reconnecting…")
            await v.page.clock.fast_forward(110_000)
            await asyncio.sleep(0.3)
            assert await v.page.locator(".notice").count() == 0
            await v.page.clock.fast_forward(15_000)
            await v.sees(".notice", "The answer is kept")
            assert (await v.text(".answer")).startswith("word0 ")
            k.cable.plug()
            await v.page.click(".notice button")
            await v.page.clock.fast_forward(1000)
            await v.done()
            assert (await v.text(".answer")).strip() == WHOLE.strip()

    @TRANSPORTS
    async def test_a_reload_in_the_middle_goes_on(self, browser: Browser, tmp_path: Path, script: str) -> None:
        async with opened(browser, tmp_path, script=script) as (v, k):
            await v.ask("hello")
            await v.sees(".answer", "word9")
            await v.page.reload()
            assert await v.text(".question") == "hello"
            await v.sees(".answer", "word30")
            await v.page.reload()
            await whole(v, k)
            await v.page.reload()
            await whole(v, k)
            await v.page.click("#new")
            await v.page.reload()
            assert await v.page.locator(".turn").count() == 0

    async def test_a_reload_after_the_answer_was_evicted_keeps_what_came(
        self, browser: Browser, tmp_path: Path
    ) -> None:
        async with opened(browser, tmp_path, "half ", asyncio.Event()) as (v, k):
            await v.ask("hello")
            await v.sees(".answer", "half")
            await v.page.goto("about:blank")
            k.source.cancel(k.source.submitted[0].id)
            await asyncio.sleep(0.1)
            k.store._max_age_s = -1
            await k.store.prune()
            await v.page.goto(v.origin)
            await v.sees(".notice", "evicted")
            assert (await v.text(".answer")).strip() == "half"

    @TRANSPORTS
    async def test_stop_stops_what_would_go_on_by_itself(self, browser: Browser, tmp_path: Path, script: str) -> None:
        # It never ends by itself, however late the click comes; one right after Send would count for nothing.
        async with opened(browser, tmp_path, *slowly(0.02)[:100], asyncio.Event(), script=script) as (v, k):
            await v.ask("hello")
            await v.sees(".answer", "word49")
            await v.page.click("#go")
            await v.sees(".notice", "Stopped")
            await until(lambda: bool(k.source.cancelled))
            assert k.source.cancelled == [k.source.submitted[0].id]

    @TRANSPORTS
    async def test_a_node_that_keeps_nothing_is_asked_without_it(
        self, browser: Browser, tmp_path: Path, script: str
    ) -> None:
        never = {"streams.resumable": "never"}
        async with opened(browser, tmp_path, "a ", "b", script=script, flags=never) as (v, _):
            await v.ask("hello")
            await v.done()
            assert await v.text(".answer") == "a b"

    async def test_a_key_goes_with_the_websocket(self, browser: Browser, tmp_path: Path) -> None:
        script = f"sessionStorage.setItem('outpost.key', '{KEY}')"
        async with opened(browser, tmp_path, "a ", "b", script=script, flags={"server.api_keys": KEY}) as (v, _):
            async with v.page.expect_websocket() as socket:
                await v.ask("hello")
            assert (await socket.value).url.endswith("/v1/ws")
            await v.done()
            assert await v.text(".answer") == "a b"

    async def test_a_failed_engine_is_told_and_not_come_back_for(self, browser: Browser, tmp_path: Path) -> None:
        failing = errors.EngineFailed("The engine broke.")
        async with opened(browser, tmp_path, "half ", failing) as (v, k):
            await v.ask("hello")
            await v.sees(".notice", "The engine broke. The answer is kept")
            assert len(k.source.submitted) == 1

    async def test_bursts_are_smoothed_only_where_motion_is_welcome(self, browser: Browser, tmp_path: Path) -> None:
        burst = [step for number in range(6) for step in (0.25, *[f"w{number} "] * 12)]
        seen = []
        for motion in ("no-preference", "reduce"):
            folder = tmp_path / motion
            folder.mkdir()
            async with opened(browser, folder, *burst, reduced_motion=motion) as (v, _):
                await v.page.evaluate(
                    """() => {
                        window.steps = 0;
                        new MutationObserver((changes) => (window.steps += changes.length)).observe(
                            document.querySelector("#log"), {subtree: true, characterData: true});
                    }"""
                )
                await v.ask("hello")
                await v.done()
                seen.append(await v.page.evaluate("window.steps"))
        flowing, still = seen
        assert flowing > 2 * still
