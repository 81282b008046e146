"""The chat page open in a browser, with everything it did that it should not do."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from aiohttp.test_utils import TestServer

from tests.support.page_node import ScriptedNode

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page


class Visit:
    """One open page and its complaints."""

    def __init__(self, page: Page, node: ScriptedNode, origin: str) -> None:
        self.page, self.node, self.origin = page, node, origin
        self.complaints: list[str] = []
        self.forgiven = False
        page.on("request", self._request)
        page.on("console", lambda message: message.type in ("error", "warning") and self._complain(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.origin, "data:")):
            self.complaints.append(f"request to {request.url}")

    def _complain(self, text: str) -> None:
        # Chromium reports every refused fetch by itself; a test that causes some says so.
        if not (self.forgiven and text.startswith("Failed to load resource")):
            self.complaints.append(text)

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Inside, the node may refuse requests."""
        self.forgiven = True
        yield

    async def ask(self, text: str) -> None:
        await self.page.fill("#input", text)
        await self.page.press("#input", "Enter")

    async def sees(self, selector: str, text: str | re.Pattern[str], timeout: float = 5) -> None:
        from playwright.async_api import expect

        await expect(self.page.locator(selector).last).to_contain_text(text, timeout=timeout * 1000)

    async def done(self) -> None:
        from playwright.async_api import expect

        await expect(self.page.locator("#go")).to_have_attribute("aria-label", "Send")
        await expect(self.page.locator(".answer.live")).to_have_count(0)

    async def text(self, selector: str) -> str:
        return await self.page.locator(selector).last.inner_text()


@asynccontextmanager
async def visit(browser: Browser, *, node: ScriptedNode | None = None, **options: Any) -> AsyncIterator[Visit]:
    """Open the page of a scripted node; leaving checks that nothing went wrong in the browser."""
    node = node or ScriptedNode()
    async with TestServer(node.app) as server:
        options.setdefault("viewport", {"width": 900, "height": 700})
        context = await browser.new_context(**options)
        try:
            page = await context.new_page()
            opened = Visit(page, node, str(server.make_url("/")))
            with opened.refusals() if node.key or not node.ready else _nothing():
                await page.goto(opened.origin)
                yield opened
        finally:
            node.proceed.set()
            await context.close()
        assert opened.complaints == []


@contextmanager
def _nothing() -> Iterator[None]:
    yield
