"""A far place that has whole files: a web server that knows ranges, one that does not, or a folder.

`stream` gives the bytes of a file from one place on, as they come, within the way's budget. A server that answers a
range with the whole file is read from its beginning, and what comes before is thrown away: that is never done on a way
that is paid by the byte.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from node import __version__
from node.fleet.budget import Budget
from node.fleet.refusal import NotRepository, OverBudget
from node.fleet.repository import why_not

_PIECE = 64 << 10
_BUFFER = 256 << 10  # what a kill loses of what the kernel has taken in
_CONNECT_S = 20.0
_REDIRECTS = 5
_LEAST_RATE = 100  # bytes a second; a radio modem has more
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


class Trouble(Exception):
    """It does not work now; the words are for people."""


class Missing(Trouble):
    """The place has no such file."""


class _Pace:
    """Raises Trouble where so little comes that waiting for the rest makes no sense."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._since, self._bytes = time.monotonic(), 0

    def moved(self, count: int, now: float) -> None:
        self._bytes += count
        if now - self._since >= self._stall_s:
            if self._bytes < _LEAST_RATE * self._stall_s:
                raise Trouble(f"it sends less than {_LEAST_RATE} bytes a second")
            self._since, self._bytes = now, 0


class Origin:
    """One place. `ranges` becomes False when it turns out not to know them. `close` ends its connections.

    `counts` is whether its bytes count for what a file has cost over restarts: a mirror's do not.
    """

    def __init__(
        self,
        base: str,
        budget: Budget,
        *,
        tls: ssl.SSLContext | None = None,
        stall_s: float = 60.0,
        http: bool = False,
        counts: bool = True,
    ) -> None:
        self.base, self.budget, self.ranges, self.counts = base, budget, True, counts
        self._tls, self._stall_s, self._allow_http = tls, stall_s, http
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Let go of the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def stream(self, place: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """The bytes from `start` to before `end` of the file at `place`; raises Trouble, OverBudget, NotRepository."""
        url = self.base + place
        if urllib.parse.urlsplit(url).scheme == "file":
            async for piece in self._from_folder(url, start, end):
                yield piece
            return
        async with self._asked(url, start, end) as response:
            at = start if response.status == 206 else 0
            pace = _Pace(self._stall_s)
            async for piece in response.content.iter_chunked(_PIECE):
                piece = piece[: end - at]
                pace.moved(len(piece), time.monotonic())
                if not self.budget.affords(len(piece)):
                    raise OverBudget(f"More bytes came than {self.base} may cost.")
                await self._spend(len(piece))
                if at + len(piece) > start:
                    yield piece[max(0, start - at) :]
                at += len(piece)
                if at >= end:
                    return
        raise Trouble(f"the connection closed {end - at:,} bytes too early")

    async def _spend(self, count: int) -> None:
        if wait := self.budget.spend(count, time.monotonic()):
            await asyncio.sleep(wait)

    @asynccontextmanager
    async def _asked(self, url: str, start: int, end: int) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            response = await self._request(url, {"Range": f"bytes={start}-{end - 1}"})
            try:
                self._judge(response, start, end)
                yield response
            finally:
                response.close()
        except (aiohttp.ClientError, OSError) as error:
            raise Trouble(str(error) or type(error).__name__) from error

    async def _request(self, url: str, headers: dict[str, str]) -> aiohttp.ClientResponse:
        """Follows redirects itself, only to where the setting might point as well."""
        session = self._connected()
        for _ in range(_REDIRECTS):
            response = await session.get(url, headers=headers, allow_redirects=False)
            if response.status not in (301, 302, 303, 307, 308):
                return response
            response.close()
            url = urllib.parse.urljoin(url, response.headers.get("Location", ""))
            if reason := why_not(url, allow_http=self._allow_http):
                raise Trouble(f"the server redirects to where nothing is fetched from: {reason}")
        raise Trouble("the server redirects again and again")

    def _judge(self, response: aiohttp.ClientResponse, start: int, end: int) -> None:
        if response.status in (403, 404, 410):
            raise Missing(f"the server has no {response.url.name} ({response.status})")
        if response.status not in (200, 206):
            raise Trouble(f"the server answered {response.status}")
        if response.content_type == "text/html":
            raise NotRepository(
                f"A web page came from {self.base} where a model's bytes should be.",
                hint="A network that wants a login, or a server that answers every address.",
            )
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise Trouble("the server sends it encoded, although it was not asked to")
        if response.status == 206:
            if not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                raise Trouble("the server sent another range than it was asked for")
        elif start:
            self.ranges = False
            if self.budget.metered:
                raise OverBudget(f"{self.base} knows no ranges, and this way is paid by the byte.")
            if not self.budget.affords(end):
                raise OverBudget(f"{self.base} knows no ranges; all of the file would cost more than it may.")

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=self._stall_s)
            connector = aiohttp.TCPConnector(ssl=self._tls or True, limit=4)
            self._session = aiohttp.ClientSession(
                timeout=timeout,
                connector=connector,
                read_bufsize=_BUFFER,
                auto_decompress=False,
                trust_env=urllib.parse.urlsplit(self.base).hostname not in _LOOPBACK,  # no proxy knows this machine
                headers={"User-Agent": f"outpost/{__version__}", "Accept-Encoding": "identity"},
            )
        return self._session

    async def _from_folder(self, url: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        path = urllib.request.url2pathname(urllib.parse.urlsplit(url).path)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise Missing(f"cannot open {path}: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise Missing(f"{path} is no file")
            while start < end:
                piece = await asyncio.to_thread(os.pread, handle, min(1 << 20, end - start), start)
                if not piece:
                    raise Trouble(f"{path} ends {end - start:,} bytes too early")
                await self._spend(len(piece))
                yield piece
                start += len(piece)
        except OSError as error:
            raise Trouble(f"cannot read {path}: {error.strerror}") from error
        finally:
            os.close(handle)
