"""Chunks between neighbours: what a node has of model files, by hash, and how it asks others.

    GET /mesh/chunk/SHA256    200 the chunk · 202 "coming", ask again · 404 not here

There is no second copy of anything: a hash leads to a place in an installed file, or in one that is being fetched.
Every chunk is hashed again before it leaves, so a damaged file harms nobody. The route belongs on the mesh's listener,
which only enrolled nodes have; what comes from there is hashed by whoever asked.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import aiohttp
from aiohttp import web

from node.fleet import chunks
from node.fleet.directive import MAX_CHUNK_BYTES

ROUTE = "/mesh/chunk/{sha256}"
_SENDS = 4  # at the same time; each holds a chunk in memory
_ASK_S = 30.0
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Absent(Exception):
    """The peer has not got it."""


class Coming(Exception):
    """The peer will have it soon."""


class Silent(Exception):
    """The peer does not answer, or not as a peer does."""


class Peer(Protocol):
    """A neighbour that may have chunks."""

    @property
    def id(self) -> str:
        """Its id in the fleet."""

    async def get(self, sha256: str) -> bytes:
        """A chunk, unchecked and at most 4 MiB; raises Absent, Coming, Silent."""


class Fetching(Protocol):
    """A fetch that runs on this node."""

    def read(self, sha256: str) -> bytes | None:
        """A chunk that has come."""

    def claims(self, sha256: str, asker: str) -> bool:
        """Whether that chunk will be here without the asker's help."""


class ChunkStore:
    """What this node can give. `hold` and `read` take time and belong in a thread.

    `installed` says which files there are besides those that were held: they are looked at when somebody asks for what
    is not known, since a start has better things to do than to hash its models.
    """

    def __init__(self, installed: Callable[[], Iterable[Path]] = tuple) -> None:
        self.installed = installed
        self._looking = threading.Lock()
        self._places: dict[str, tuple[Path, int, int]] = {}
        self._held: dict[Path, tuple[int, int]] = {}
        self._fetching: list[Fetching] = []
        self.given = 0
        "bytes that went to neighbours"

    def hold(self, path: Path) -> None:
        """Have the chunks of an installed file; raises OSError. A file that is held already costs nothing."""
        state = path.stat()
        known = (state.st_size, state.st_mtime_ns)
        if self._held.get(path) != known:
            for digest, offset, length in chunks.places(path):
                self._places[digest] = (path, offset, length)
            self._held[path] = known

    def find(self, sha256: str) -> tuple[Path, int, int] | None:
        """Where a chunk lies: file, first byte, length."""
        return self._places.get(sha256)

    def begin(self, fetching: Fetching) -> None:
        """A fetch runs; what it has is to be had, too."""
        self._fetching.append(fetching)

    def end(self, fetching: Fetching) -> None:
        """It has ended."""
        self._fetching.remove(fetching)

    def read(self, sha256: str, asker: str = "") -> bytes:
        """A chunk, hashed; raises Absent, or Coming where it is on its way."""
        data = self._read_installed(sha256)
        if data is None and self._look_around():
            data = self._read_installed(sha256)
        with suppress(OSError):  # a fetch that ends right now
            for fetching in tuple(self._fetching):
                data = data or fetching.read(sha256)
        if data is not None:
            return data
        if any(fetching.claims(sha256, asker) for fetching in tuple(self._fetching)):
            raise Coming
        raise Absent

    def _look_around(self) -> bool:
        """Look at installed files that are new; who asks meanwhile is told that nothing is here yet."""
        if not self._looking.acquire(blocking=False):
            return False
        try:
            known = len(self._held)
            for path in self.installed():
                with suppress(OSError):
                    self.hold(path)
            return len(self._held) > known
        finally:
            self._looking.release()

    def _read_installed(self, sha256: str) -> bytes | None:
        place = self._places.get(sha256)
        if place is None:
            return None
        path, offset, length = place
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            data = b""
        else:
            try:
                data = chunks.read_at(handle, offset, length)
            finally:
                os.close(handle)
        if hashlib.sha256(data).hexdigest() == sha256:
            return data
        del self._places[sha256]  # gone, replaced or damaged
        self._held.pop(path, None)
        return None


def add_chunks(app: web.Application, store: ChunkStore, peer_of: Callable[[web.Request], str]) -> None:
    """Answer neighbours on an app that has authenticated them; `peer_of` gives the asker's id."""
    gate = asyncio.Semaphore(_SENDS)

    async def chunk(request: web.Request) -> web.Response:
        sha256 = request.match_info["sha256"]
        if not _DIGEST.fullmatch(sha256):
            return web.Response(status=404)
        async with gate:
            try:
                data = await asyncio.to_thread(store.read, sha256, peer_of(request))
            except Coming:
                return web.Response(status=202)
            except Absent:
                return web.Response(status=404)
            store.given += len(data)
            return web.Response(body=data, content_type="application/octet-stream")

    app.router.add_get(ROUTE, chunk)


class MeshPeer:
    """A neighbour behind a session that reaches it and nobody else."""

    def __init__(self, id: str, session: aiohttp.ClientSession) -> None:
        self.id = id
        self._session = session

    async def get(self, sha256: str) -> bytes:
        """Ask it for a chunk; raises Absent, Coming, Silent."""
        timeout = aiohttp.ClientTimeout(total=_ASK_S)
        try:
            async with self._session.get(ROUTE.format(sha256=sha256), timeout=timeout) as answer:
                if answer.status == 202:
                    raise Coming
                if answer.status == 404:
                    raise Absent
                if answer.status != 200:
                    raise Silent(f"it answered {answer.status}")
                return await _bounded(answer.content)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Silent(str(error) or type(error).__name__) from error


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    data = bytearray()
    async for piece in content.iter_any():
        data += piece
        if len(data) > MAX_CHUNK_BYTES:
            raise Silent("it sends more than a chunk can have")
    return bytes(data)
