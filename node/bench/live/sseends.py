"""Both ends of what everybody does: OpenAI's server-sent events over HTTP by aiohttp, one TCP connection a reader.

The congestion control stands in the scheme's name, and is set for each socket: what a kernel takes by default differs.
"""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

from node.bench.live import script as scripts
from node.bench.live.hosts import NEAR
from node.bench.live.script import Log, Script

SCHEMES = {"SSE over cubic": "cubic", "SSE over bbr": "bbr"}
_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_OPTION = getattr(socket, "TCP_CONGESTION", 13)  # Linux


def obstacle(scheme: str) -> str:
    """Why this kernel cannot do it; "" where it can."""
    control = SCHEMES[scheme]
    known = _AVAILABLE.read_text().split() if _AVAILABLE.exists() else []
    return "" if control in known else f"this kernel has no TCP congestion control called {control}"


def socket_with(control: str) -> socket.socket:
    """A TCP socket with a congestion control of its own."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.IPPROTO_TCP, _OPTION, control.encode())
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made


def event(reply: int, content: bytes) -> bytes:
    """A chunk as OpenAI's API would stream it."""
    choice = {"index": 0, "delta": {"content": content.decode()}, "logprobs": None, "finish_reason": None}
    told = {
        "id": f"chatcmpl-{reply:024d}",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "smollm2-135m",
        "choices": [choice],
    }
    return b"data: " + json.dumps(told, separators=(",", ":")).encode() + b"\n\n"


async def near(script: Script, log: Log) -> None:
    """Answer until cancelled."""

    async def answer(request: web.Request) -> web.StreamResponse:
        reply = int(request.match_info["reply"])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        waiting: asyncio.Queue[bytes] = asyncio.Queue()
        making = asyncio.create_task(scripts.make(reply, script.talk, log, waiting.put_nowait))
        for _ in range(script.talk.chunks):
            await response.write(event(reply, await waiting.get()))
        await making
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_get("/{reply}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    listening = socket_with(SCHEMES[script.scheme])
    listening.bind((NEAR, script.port))
    await web.SockSite(runner, listening).start()
    try:
        await asyncio.Future()
    finally:
        await runner.cleanup()


async def far(script: Script, log: Log) -> None:
    """Ask all that is to be asked."""
    await asyncio.gather(*(_reader(script, log, reader) for reader in range(script.readers)))


async def _reader(script: Script, log: Log, reader: int) -> None:
    await scripts.stagger(reader)
    control = SCHEMES[script.scheme]
    connector = TCPConnector(socket_factory=lambda address: socket_with(control))
    async with ClientSession(connector=connector, timeout=ClientTimeout(total=None)) as session:
        for reply in scripts.turns(script, reader):
            await _ask(session, script, log, reply)
            await scripts.pause()


async def _ask(session: ClientSession, script: Script, log: Log, reply: int) -> None:
    loop = asyncio.get_running_loop()
    said = bytearray()
    async with session.get(f"http://{NEAR}:{script.port}/{reply}") as response:
        async for line in response.content:
            if line.startswith(b"data: {"):
                log.times[reply].append(loop.time())
                said += json.loads(line[6:])["choices"][0]["delta"]["content"].encode()
    if said == scripts.whole_text(reply, script.talk):
        log.whole.append(reply)
