"""A node that answers the chat page by script: streams, refusals, broken connections."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from aiohttp import web

from node.server.page import add_page

EVIL = """<script>window.ran = 1</script> <img src=x onerror='window.ran = 2'> **<b onclick=x>bold</b>**

```html
<i>
```"""
MARKDOWN = """# Plan

First **bold** and `code`.
Second line.

1. one
2. two
   - inner
   - **deep**

- other

```python
print("<b>")

x = 1
```
after"""


class ScriptedNode:
    """Plays the node's API: the last question says what happens."""

    def __init__(self) -> None:
        self.model = "scripted-1b"
        self.ready = True
        self.key = ""
        self.requests: list[dict[str, Any]] = []
        self.busy = 0
        self.failing = 0
        self.gone = asyncio.Event()
        self.proceed = asyncio.Event()
        self.app = web.Application()
        self.app.router.add_get("/v1/models", self.models)
        self.app.router.add_get("/health/ready", self.health)
        self.app.router.add_post("/v1/chat/completions", self.chat)
        add_page(self.app)

    async def models(self, request: web.Request) -> web.Response:
        return self.refusal(request) or web.json_response({"object": "list", "data": [{"id": self.model}]})

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({}, status=200 if self.ready else 503)

    def refusal(self, request: web.Request) -> web.Response | None:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return _error(401, "A key is needed", code="invalid_api_key")
        return None

    async def chat(self, request: web.Request) -> web.StreamResponse:
        if (refused := self.refusal(request)) is not None:
            return refused
        body = await request.json()
        self.requests.append(body)
        word, _, rest = body["messages"][-1]["content"].partition(" ")
        if word == "busy" and self.busy:
            self.busy -= 1
            return _error(429, "The queue is full", code="queue_full", retry_after=1)
        if word == "draining":
            return _error(503, "Draining", code="unavailable")
        if word == "long" and len(body["messages"]) > 1:
            return _error(400, "This model's context is 2048 tokens", code="context_length_exceeded")
        if word == "refused":
            return _error(400, "`messages` is wrong", code=None)
        if self.failing:
            self.failing -= 1
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return await self.stream(request, word, rest)

    async def stream(self, request: web.Request, word: str, rest: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        try:
            await response.write(b": ka\n" + _chunk({"role": "assistant", "content": ""}))
            await self.play(request, response, word, rest)
        except (ConnectionResetError, asyncio.CancelledError):
            self.gone.set()
            raise
        return response

    async def play(self, request: web.Request, response: web.StreamResponse, word: str, rest: str) -> None:
        count = 3
        if word == "forever":
            for number in range(10_000):
                await response.write(_chunk({"content": f"word{number} "}))
                await asyncio.sleep(0.02)
        elif word == "hold":
            await response.write(_chunk({"content": "the beginning "}))
            await self.proceed.wait()
            await response.write(_chunk({"content": "the end"}))
        elif word == "emoji":
            event = _chunk({"content": "a 🛰️ b é"})
            for cut in range(len(event)):
                await response.write(event[cut : cut + 1])
        elif word == "broken":
            await response.write(_chunk({"content": "half an answer"}))
            await response.write(_event({"error": {"message": "The engine broke", "code": "engine_failed"}}))
            return
        elif word == "cut":
            await response.write(_chunk({"content": "half an answer"}))
            await asyncio.sleep(0.1)
            assert request.transport is not None
            request.transport.abort()
            return
        elif word == "many":
            count = 400
            for number in range(count):
                await response.write(_chunk({"content": f"line {number}\n\n"}))
                await asyncio.sleep(0 if number < 200 else 0.004)
        else:
            text = {"evil": EVIL, "markdown": MARKDOWN, "quiet": ""}.get(word, f"You said: {word} {rest}")
            for piece in re.findall(r"(?s).{1,7}", text):
                await response.write(_chunk({"content": piece}))
                await asyncio.sleep(0.005)
        reason = "length" if word == "endless" else "stop"
        await response.write(_chunk({}, reason) + _event({"choices": [], "usage": {"completion_tokens": count}}))
        await response.write(b"data: [DONE]\n\n")


def _error(status: int, message: str, *, code: str | None, retry_after: int | None = None) -> web.Response:
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return web.json_response({"error": {"message": message, "code": code}}, status=status, headers=headers)


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def _chunk(delta: dict[str, str], reason: str | None = None) -> bytes:
    return _event({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}], "usage": None})
