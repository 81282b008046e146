"""The chat page open in a browser, with everything it did that it should not do."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp.test_utils import TestServer

from tests.support.page_node import ScriptedNode

if TYPE_CHECKING:
    from playwright.async_api import Browser, ConsoleMessage, Page

_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """The system's Chromium; skips the test where there is none."""
    api = pytest.importorskip("playwright.async_api", reason="Playwright is not installed")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium on this machine")
    async with api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=_FLAGS)
        yield browser
        await browser.close()


class Visit:
    """One open page and its complaints."""

    node: ScriptedNode

    def __init__(self, page: Page, origin: str) -> None:
        self.page, self.origin, self.refusals = page, origin, False
        self.complaints: list[str] = []
        page.on("request", self._request)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.origin, "data:")):
            self.complaints.append(f"request to {request.url}")

    def _console(self, message: ConsoleMessage) -> None:
        # Chromium reports every refused fetch by itself; a test that causes some says so.
        forgiven = self.refusals and message.text.startswith(("Failed to load resource", "WebSocket connection to"))
        if message.type in ("error", "warning") and not forgiven:
            self.complaints.append(message.text)

    async def ask(self, text: str) -> None:
        await self.page.fill("#input", text)
        await self.page.press("#input", "Enter")

    async def sees(self, selector: str, text: str | re.Pattern[str]) -> None:
        await self.page.locator(selector).last.filter(has_text=text).wait_for(timeout=30_000)

    async def done(self) -> None:
        await self.page.locator("body:not(:has(.busy, .answer.live))").wait_for(timeout=30_000)

    async def text(self, selector: str) -> str:
        return await self.page.locator(selector).last.inner_text()

    async def fits(self, width: int) -> None:
        """Nothing scrolls sideways, text can be read at arm's length, everything can be hit with a finger."""
        wide, font, small = await self.page.evaluate(
            """() => [
                Math.max(document.documentElement.scrollWidth, document.querySelector('#log').scrollWidth),
                parseFloat(getComputedStyle(document.documentElement).fontSize),
                [...document.querySelectorAll('button, input, textarea')]
                    .map((e) => [e.textContent.trim() || e.id, e.getBoundingClientRect()])
                    .filter(([, r]) => r.width && (r.width < 48 || r.height < 48)).map(([name]) => name),
            ]"""
        )
        assert wide <= width
        assert font >= 18
        assert small == []


@asynccontextmanager
async def visit(
    browser: Browser, *, node: ScriptedNode | None = None, refusals: bool = False, **options: Any
) -> AsyncIterator[Visit]:
    """Open the page of a scripted node; leaving checks that nothing went wrong in the browser.

    `refusals` says that the node will refuse requests, which Chromium logs as errors by itself.
    """
    node = node or ScriptedNode()
    async with TestServer(node.app) as server, visit_at(browser, str(server.make_url("/")), **options) as opened:
        opened.node, opened.refusals = node, refusals
        try:
            yield opened
        finally:
            node.proceed.set()


@asynccontextmanager
async def visit_at(browser: Browser, origin: str, *, script: str = "", **options: Any) -> AsyncIterator[Visit]:
    """Open the page at an address, after `script` has run in it."""
    options.setdefault("viewport", {"width": 900, "height": 700})
    context = await browser.new_context(**options)
    try:
        if script:
            await context.add_init_script(script)
        page = await context.new_page()
        opened = Visit(page, origin)
        await page.goto(origin)
        yield opened
    finally:
        await context.close()
    assert opened.complaints == []
