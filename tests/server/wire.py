"""What the server's tests share: requests on a real connection, and events read back from bytes."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import aiohttp

USER = [{"role": "user", "content": "hi"}]


def chat(**more: Any) -> dict[str, Any]:
    """A chat request's body."""
    return {"messages": USER, **more}


def events(body: bytes) -> list[Any]:
    """The JSON of a stream's events, and the string `[DONE]`; strict about the framing."""
    assert body.endswith(b"\n\n")
    found = []
    for block in body.replace(b": ka\n", b"").decode().split("\n\n")[:-1]:
        assert block.startswith("data: ")
        assert "\n" not in block
        data = block.removeprefix("data: ")
        found.append(data if data == "[DONE]" else json.loads(data))
    return found


def text_of(chunks: list[Any]) -> str:
    """The content of a chat stream's chunks."""
    choices = [choice for chunk in chunks if chunk != "[DONE]" for choice in chunk["choices"]]
    return "".join(choice["delta"].get("content", "") for choice in choices)


async def post(url: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, bytes, Any]:
    """POST JSON (or bytes as they are); gives status, body and headers."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with aiohttp.ClientSession() as client, client.post(url, data=data, headers=headers) as response:
        return response.status, await response.read(), response.headers


async def stream(url: str, **more: Any) -> list[Any]:
    """The events of a streamed chat."""
    status, body, _ = await post(f"{url}/v1/chat/completions", chat(stream=True, **more))
    assert status == 200, body
    return events(body)


async def refused(url: str, body: Any, path: str = "/v1/chat/completions") -> tuple[int, dict[str, Any]]:
    """Status and error of a request that must fail."""
    status, answer, _ = await post(url + path, body)
    assert status >= 400, answer
    return status, json.loads(answer)["error"]


async def open_post(
    url: str, path: str, body: Any, *extra: str, length: int | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request on a bare connection, so that a test decides when to read and when to go away; `length` may lie."""
    address = urlsplit(url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # or the kernel reads megabytes for us
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, (address.hostname, address.port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 16)
    data = json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "Host: node", f"Content-Length: {length or len(data)}", *extra, "", ""]
    writer.write("\r\n".join(head).encode() + data)
    await writer.drain()
    return reader, writer


async def until(condition: Any, seconds: float = 60.0) -> None:
    """Wait until `condition()` holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # the conditions live in what is being tested
            await asyncio.sleep(0.005)
