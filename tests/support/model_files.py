"""Model files for fetching: small GGUF files that share parts, and servers that have them."""

from __future__ import annotations

import contextlib
import hashlib
import random
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from aiohttp import web

from node.fleet import chunks, places
from node.fleet.directive import ChunkIndex

_STRING, _ARRAY = 8, 9
_F32 = 0


def gguf(path: Path, *, template: str = "hello", blocks: int = 6, seed: int = 1, width: int = 1 << 18) -> Path:
    """A GGUF file of `blocks` MiB and a little more; another template moves everything and changes nothing else."""
    tensors = [("token_embd.weight", width), *((f"blk.{number}.ffn.weight", width) for number in range(blocks))]
    pairs = [
        _text("general.architecture") + struct.pack("<I", _STRING) + _text("llama"),
        _text("tokenizer.chat_template") + struct.pack("<I", _STRING) + _text(template),
        _text("tokenizer.ggml.tokens")
        + struct.pack("<IIQ", _ARRAY, _STRING, 9000)
        + b"".join(_text(f"token-{number}") for number in range(9000)),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs)
    offset = 0
    for name, count in tensors:
        head += _text(name) + struct.pack("<IQIQ", 1, count, _F32, offset)
        offset += count * 4
    dice = random.Random(seed)
    with path.open("wb") as file:
        file.write(head + bytes(-len(head) % 32))
        for _, count in tensors:
            file.write(dice.randbytes(count * 4))
    return path


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def publish(source: Path, repository: Path, *, pack: bool = False) -> ChunkIndex:
    """Lay a model file into a repository's folder, with its packed chunks; returns its index."""
    packed = repository / "chunks"
    packed.mkdir(parents=True, exist_ok=True)

    def keep(digest: str, data: bytes) -> None:
        (repository / places.chunk_file(digest)).write_bytes(data)

    index = chunks.index(source, lambda *_: None, keep if pack else None)
    target = repository / places.model_file(index.sha256)
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(source.read_bytes())
    return index


def digest(path: Path) -> str:
    """A file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


Change = Callable[[web.Request], web.StreamResponse | None]


class FileServer:
    """A web server for a folder: ranges, and a count of what left it."""

    def __init__(self, folder: Path, change: Change | None = None, *, ranges: bool = True) -> None:
        self.folder, self.change, self.ranges = folder, change, ranges
        self.requests: list[str] = []
        self.sent = 0
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request.path)
        if self.change is not None and (changed := self.change(request)) is not None:
            return changed
        path = self.folder / request.path.lstrip("/")
        if not path.is_file():
            return web.Response(status=404, text="<html>not here</html>", content_type="text/html")
        data = path.read_bytes()  # a test's server
        window = request.http_range if self.ranges else slice(None)
        begin, end = window.start or 0, len(data) if window.stop is None else min(window.stop, len(data))
        status = 206 if self.ranges and "Range" in request.headers else 200
        response = web.StreamResponse(status=status, headers={"Content-Length": str(end - begin)})
        if status == 206:
            response.headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(data)}"
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while begin < end:
                piece = data[begin : min(end, begin + (64 << 10))]
                await response.write(piece)
                self.sent += len(piece)
                begin += len(piece)
        return response


@contextlib.asynccontextmanager
async def served(server: FileServer) -> AsyncIterator[FileServer]:
    """The server, listening."""
    app = web.Application()
    app.router.add_get("/{path:.*}", server.answer)
    async with listening(app) as url:
        server.url = url + "/"
        yield server


@contextlib.asynccontextmanager
async def listening(app: web.Application) -> AsyncIterator[str]:
    """An app on a free port of this machine; gives its address."""
    runner = web.AppRunner(app, shutdown_timeout=0.2)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
