"""A WebSocket client for tests: messages as dicts, and what came for each generation kept apart."""

from __future__ import annotations

import base64
import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import WSMsgType

from tests.server.wire import USER

ENDS = {"finish", "interrupted", "error"}


class Talk:
    """One connection; `said` is everything that came, by id."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.said: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)

    async def send(self, type: str, **members: Any) -> None:
        await self.socket.send_str(json.dumps({"type": type, **members}))

    async def ask(
        self, ref: Any, *, route: str = "chat", resumable: bool = False, key: Any = None, **more: Any
    ) -> None:
        """Start a generation; `more` goes into the body."""
        body = {"messages": USER, **more} if route == "chat" else {"prompt": "hi", **more}
        await self.send("request", id=ref, route=route, body=body, resumable=resumable, key=key)

    async def next(self) -> dict[str, Any]:
        message = await self.socket.receive(timeout=60)
        assert message.type is WSMsgType.TEXT, message
        told: dict[str, Any] = json.loads(message.data)
        self.said[told.get("id")].append(told)
        return told

    async def until(self, type: str, ref: Any = None) -> dict[str, Any]:
        """Read on to the next message of `type`, of generation `ref` if it is given."""
        while True:
            told = await self.next()
            if told["type"] == type and (ref is None or told.get("id") == ref):
                return told

    async def end(self, ref: Any) -> dict[str, Any]:
        """Read on to the end of generation `ref`."""
        while True:
            told = await self.next()
            if told["type"] in ENDS and told.get("id") == ref:
                return told

    async def closing(self) -> int | None:
        """Read to the goodbye; its code."""
        while (message := await self.socket.receive(timeout=60)).type in (WSMsgType.TEXT, WSMsgType.BINARY):
            pass
        return message.data if message.type is WSMsgType.CLOSE else self.socket.close_code

    def tokens(self, ref: Any) -> list[dict[str, Any]]:
        return [told for told in self.said[ref] if told["type"] == "token"]

    def text(self, ref: Any) -> str:
        """The text of a generation so far; every number must come once, in order."""
        tokens = self.tokens(ref)
        numbers = [told["seq"] for told in tokens]
        assert numbers == sorted(set(numbers))
        held = [told for told in self.said[ref] if told["type"] == "finish" and "delta" in told]
        return "".join(told["delta"].get("content", told["delta"].get("text", "")) for told in [*tokens, *held])


@contextlib.asynccontextmanager
async def talking(url: str, *protocols: str, key: str | None = None, **options: Any) -> AsyncIterator[Talk]:
    """A connection to the node at `url`; `key` goes into the header."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    headers |= options.pop("headers", {})
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.ws_connect(f"{url}/v1/ws", protocols=protocols, **options) as socket,
    ):
        yield Talk(socket)


def packed(key: str) -> str:
    """A key as a browser's subprotocol."""
    return "outpost-key." + base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")
