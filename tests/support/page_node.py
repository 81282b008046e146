"""A node that answers the chat page by script: streams, refusals, broken connections."""

from __future__ import annotations

import asyncio
import base64
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
    """Plays the node's API: the last question says what happens. Nothing can be resumed here."""

    def __init__(self, *, sockets: bool = True) -> None:
        self.model = "scripted-1b"
        self.ready = True
        self.key = ""
        self.requests: list[dict[str, Any]] = []
        self.transports: list[str] = []
        self.around: dict[str, Any] = {}
        self.busy = 0
        self.failing = 0
        self.gone = asyncio.Event()
        self.proceed = asyncio.Event()
        self.app = web.Application()
        self.app.router.add_get("/v1/models", self.models)
        self.app.router.add_get("/health/ready", self.health)
        self.app.router.add_get("/v1/status", self.status)
        self.app.router.add_post("/v1/chat/completions", self.chat)
        if sockets:
            self.app.router.add_get("/v1/ws", self.socket)
        add_page(self.app)

    async def models(self, request: web.Request) -> web.Response:
        return self.refusal(request) or web.json_response({"object": "list", "data": [{"id": self.model}]})

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({}, status=200 if self.ready else 503)

    async def status(self, request: web.Request) -> web.Response:
        return self.refusal(request) or web.json_response(self.around)

    def refusal(self, request: web.Request) -> web.Response | None:
        encoded = base64.urlsafe_b64encode(self.key.encode()).rstrip(b"=").decode()
        named = f"outpost-key.{encoded}" in request.headers.get("Sec-WebSocket-Protocol", "").replace(" ", "").split(
            ","
        )
        if self.key and not named and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response(_said("A key is needed", "invalid_api_key"), status=401)
        return None

    def answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any], int | None] | None:
        """Notes a request; status, error and Retry-After where it is refused."""
        self.requests.append(body)
        word = body["messages"][-1]["content"].partition(" ")[0]
        if word == "busy" and self.busy:
            self.busy -= 1
            return 429, _said("The queue is full", "queue_full"), 1
        if word == "draining":
            return 503, _said("Draining", "unavailable"), None
        if word == "long" and len(body["messages"]) > 1:
            return 400, _said("This model's context is 2048 tokens", "context_length_exceeded"), None
        if word == "refused":
            return 400, _said("`messages` is wrong", None), None
        return None

    async def chat(self, request: web.Request) -> web.StreamResponse:
        if (refused := self.refusal(request)) is not None:
            return refused
        if self._fails(request):
            return web.Response()
        body = await request.json()
        self.transports.append("sse")
        if (refused_with := self.answer(body)) is not None:
            status, error, wait = refused_with
            headers = {} if wait is None else {"Retry-After": str(wait)}
            return web.json_response(error, status=status, headers=headers)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        await self.play(Events(request, response), body)
        return response

    async def socket(self, request: web.Request) -> web.StreamResponse:
        if (refused := self.refusal(request)) is not None:
            return refused
        if self._fails(request):
            return web.Response()
        socket = web.WebSocketResponse(protocols=("outpost.v1",))
        await socket.prepare(request)
        said = await socket.receive_json()
        self.transports.append("ws")
        if (refused_with := self.answer(said["body"])) is not None:
            status, error, wait = refused_with
            await socket.send_json({"type": "error", "id": 0, **error, "status": status, "retry_after": wait})
            return socket
        await socket.send_json({"type": "accepted", "id": 0, "stream": "s1", "resumable": False})
        playing = asyncio.create_task(self.play(Messages(request, socket), said["body"]))
        async for _ in socket:  # pings; it ends when the reader leaves
            pass
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        return socket

    def _fails(self, request: web.Request) -> bool:
        if not self.failing:
            return False
        self.failing -= 1
        assert request.transport is not None
        request.transport.abort()
        return True

    async def play(self, out: Events | Messages, body: dict[str, Any]) -> None:
        word, _, rest = body["messages"][-1]["content"].partition(" ")
        try:
            await out.begin()
            await self.say(out, word, rest)
        except (ConnectionResetError, asyncio.CancelledError):
            self.gone.set()
            raise

    async def say(self, out: Events | Messages, word: str, rest: str) -> None:
        count = 3
        if word == "forever":
            for number in range(10_000):
                await out.text(f"word{number} ")
                await asyncio.sleep(0.02)
        elif word == "hold":
            await out.text("the beginning ")
            await self.proceed.wait()
            await out.text("the end")
        elif word == "emoji":
            await out.text("a 🛰️ b é", in_bytes=True)
        elif word == "broken":
            await out.text("half an answer")
            return await out.error("The engine broke", "engine_failed")
        elif word == "cut":
            await out.text("half an answer")
            await asyncio.sleep(0.1)
            return out.cut()
        elif word == "many":
            count = 400
            for number in range(count):
                await out.text(f"line {number}\n\n")
                await asyncio.sleep(0 if number < 200 else 0.012)
        else:
            text = {"evil": EVIL, "markdown": MARKDOWN, "quiet": ""}.get(word, f"You said: {word} {rest}")
            for piece in re.findall(r"(?s).{1,7}", text):
                await out.text(piece)
                await asyncio.sleep(0.005)
        await out.end("length" if word == "endless" else "stop", count)
        return None


class Events:
    """An answer as server-sent events."""

    def __init__(self, request: web.Request, response: web.StreamResponse) -> None:
        self._request = request
        self._response = response

    async def begin(self) -> None:
        await self._response.write(b": ka\n" + _chunk({"role": "assistant", "content": ""}))

    async def text(self, text: str, *, in_bytes: bool = False) -> None:
        event = _chunk({"content": text})
        for piece in [event[at : at + 1] for at in range(len(event))] if in_bytes else [event]:
            await self._response.write(piece)

    async def error(self, message: str, code: str) -> None:
        await self._response.write(_event(_said(message, code)))

    def cut(self) -> None:
        assert self._request.transport is not None
        self._request.transport.abort()

    async def end(self, reason: str, tokens: int) -> None:
        usage = _event({"choices": [], "usage": {"completion_tokens": tokens}})
        await self._response.write(_chunk({}, reason) + usage + b"data: [DONE]\n\n")


class Messages:
    """An answer as WebSocket messages."""

    def __init__(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        self._request = request
        self._socket = socket
        self._seq = -1

    async def begin(self) -> None:
        await self._socket.send_json({"type": "pong", "t": 0})

    async def text(self, text: str, *, in_bytes: bool = False) -> None:
        self._seq += 1
        await self._socket.send_json({"type": "token", "id": 0, "seq": self._seq, "delta": {"content": text}})

    async def error(self, message: str, code: str) -> None:
        await self._socket.send_json({"type": "error", "id": 0, **_said(message, code), "status": 500})

    def cut(self) -> None:
        assert self._request.transport is not None
        self._request.transport.abort()

    async def end(self, reason: str, tokens: int) -> None:
        usage = {"completion_tokens": tokens}
        await self._socket.send_json({"type": "finish", "id": 0, "reason": reason, "seq": self._seq, "usage": usage})


def _said(message: str, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "code": code}}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def _chunk(delta: dict[str, str], reason: str | None = None) -> bytes:
    return _event({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}], "usage": None})
