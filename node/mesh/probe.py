"""Asking neighbours how they are, over connections that are kept: each place has a session of its own, which reaches
the node that is expected there and nobody else.

Every answer is bounded in bytes and time, and every way in which one can fail becomes a `Silent` with its reason.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import time
from dataclasses import dataclass

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

from node.mesh import sight
from node.mesh.handshake import MeshContext, Refusals, client_context, renew
from node.mesh.identity import Identity
from node.mesh.listener import PORT_HEADER
from node.mesh.peers import Place
from node.mesh.sight import Sight
from node.mesh.sketch import digest

PROBE_S = 0.8
_CONNECT_S = 0.8
_WATCH_MORE_S = 5.0
_CONNECTIONS = 32  # to one neighbour
_SKIPPED = ("User-Agent", "Accept", "Accept-Encoding")


class Silent(Exception):
    """It did not answer as a neighbour does; the message says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a node that proved to be `id` says, `round_trip_s` seconds after it was asked."""

    id: str
    sight: Sight
    round_trip_s: float


class _Addresses(AbstractResolver):
    """Gives the addresses where a neighbour may be, whatever name is asked for."""

    def __init__(self) -> None:
        self.addresses: tuple[str, ...] = ()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        loop, flags = asyncio.get_running_loop(), socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        found: list[ResolveResult] = []
        for address in self.addresses:
            if _is_numeric(address):
                numbers = [(socket.AF_INET6 if ":" in address else socket.AF_INET, address)]
            else:  # a name, from the settings
                answers = await loop.getaddrinfo(address, port, type=socket.SOCK_STREAM)
                numbers = [(kind, str(where[0])) for kind, _, _, _, where in answers]
            for kind, number in numbers:
                found.append(ResolveResult(hostname=host, host=number, port=port, family=kind, proto=0, flags=flags))
        if not found:
            raise OSError("no address is known")
        return found

    async def close(self) -> None:
        """Nothing is open."""


@dataclass(slots=True)
class _Line:
    """What is kept for one place."""

    place: Place
    context: MeshContext
    resolver: _Addresses
    session: aiohttp.ClientSession
    latest: Sight | None = None


class Prober:
    """Sessions to neighbours, by place. Belongs to the event loop's thread; `close` it."""

    def __init__(self, identity: Identity, port: int, refusals: Refusals) -> None:
        self._identity = identity
        self._port = port
        self._refusals = refusals
        self._lines: dict[str, _Line] = {}

    async def ask(self, key: str, place: Place, wait_s: float = 0.0) -> Answer:
        """How it is, at once or after `wait_s` seconds; raises Silent."""
        line = await self._line(key, place)
        begun = time.monotonic()
        have = digest(line.latest.sketch) if line.latest else ""
        query = f"?wait={wait_s:.0f}" if wait_s else "?"
        timeout = aiohttp.ClientTimeout(total=wait_s + (_WATCH_MORE_S if wait_s else PROBE_S), sock_connect=_CONNECT_S)
        try:
            path = f"/mesh/status{query}&have={have}"
            async with line.session.get(path, timeout=timeout, allow_redirects=False) as response:
                raw = await read_bounded(response, sight.MAX_BYTES)
                if response.status != 200:
                    raise Silent(_refusal(response.status, raw))
                told = self._understood(line, sight.read(raw))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise Silent(reason_of(error)) from error
        return Answer(line.context.seen, told, time.monotonic() - begun)

    async def fetch_denied(self, key: str) -> bytes:
        """The list of denied nodes that a neighbour has; raises Silent."""
        line = self._lines.get(key)
        if line is None:
            raise Silent("it is not there any more")
        try:
            timeout = aiohttp.ClientTimeout(total=5.0)
            async with line.session.get("/mesh/denied", timeout=timeout, allow_redirects=False) as response:
                return await read_bounded(response, 64 << 10)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise Silent(reason_of(error)) from error

    def session(self, key: str) -> aiohttp.ClientSession | None:
        """What reaches the node at this place, if it was ever asked."""
        line = self._lines.get(key)
        return line.session if line else None

    def renew(self, identity: Identity) -> None:
        """From now on connections show this certificate; raises EnrolmentError."""
        self._identity = identity
        for line in self._lines.values():
            renew(line.context, identity)

    async def drop(self, key: str) -> None:
        """Close what is open to a place."""
        if line := self._lines.pop(key, None):
            await line.session.close()

    async def close(self) -> None:
        """Close everything."""
        await asyncio.gather(*(self.drop(key) for key in list(self._lines)))

    async def _line(self, key: str, place: Place) -> _Line:
        line = self._lines.get(key)
        if line is not None and (line.place.port, line.place.id) != (place.port, place.id):
            await self.drop(key)
            line = None
        if line is None:
            line = self._lines[key] = self._opened(key, place)
        line.resolver.addresses = place.addresses
        return line

    def _opened(self, key: str, place: Place) -> _Line:
        context, resolver = client_context(self._identity, self._refusals, place.id), _Addresses()
        connector = aiohttp.TCPConnector(
            ssl=context,
            resolver=resolver,
            use_dns_cache=False,
            limit=_CONNECTIONS,
            keepalive_timeout=60.0,
            happy_eyeballs_delay=0.1,
        )
        name = place.id or "node"
        session = aiohttp.ClientSession(
            f"https://{name}.mesh:{place.port}",
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            headers={PORT_HEADER: str(self._port)},
            skip_auto_headers=_SKIPPED,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        return _Line(place, context, resolver, session)

    def _understood(self, line: _Line, told: Sight) -> Sight:
        """With the sketch that it did not repeat; raises Silent for one who says it is somebody else."""
        if told.id != line.context.seen:
            raise Silent("it says that it is another node than its certificate does")
        if told.sketch_same:
            told = msgspec.structs.replace(told, sketch=line.latest.sketch if line.latest else b"", sketch_same=False)
        line.latest = told
        return told


async def read_bounded(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The whole body; raises ValueError as soon as it is longer than `most` bytes."""
    parts, size = [], 0
    async for part in response.content.iter_chunked(8 << 10):
        size += len(part)
        if size > most:
            raise ValueError(f"its answer has more than {most} bytes")
        parts.append(part)
    return b"".join(parts)


def reason_of(error: BaseException) -> str:
    """Why a neighbour could not be asked, in a few words that hold nothing from outside."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, ssl.SSLCertVerificationError):
            return "it is not the neighbour it should be (see the log)"
        if isinstance(found, ssl.SSLError):
            return "it refused this node's certificate, or does not speak TLS 1.3"
        if isinstance(found, ConnectionRefusedError):
            return "nobody listens there"
        found = found.__cause__ or getattr(found, "os_error", None)
    if isinstance(error, TimeoutError | aiohttp.ServerTimeoutError):
        return "it did not answer in time"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "it cannot be reached"
    if isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError | aiohttp.ClientOSError):
        return "it closed the connection; it may not accept this node's certificate"
    if isinstance(error, ValueError | aiohttp.ClientPayloadError | aiohttp.ClientResponseError):
        return "what it answered makes no sense"
    return "it cannot be reached"


def _is_numeric(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def _refusal(status: int, raw: bytes) -> str:
    try:
        message = str(msgspec.json.decode(raw)["error"]["message"])[:120]
    except (msgspec.MsgspecError, KeyError, TypeError):
        message = ""
    return f"it answered {status}{': ' + message if message.isprintable() and message else ''}"
