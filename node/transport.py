"""How an answer's chunks travel: server-sent events or a WebSocket, one connection an answer.

Every foreign exception becomes one of ours here. A connection is an async context; its batches end when the answer is
whole, and raise when the connection ends before that.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import aiohttp
import msgspec

from node import frames
from node.chunks import (
    MAX_LINE_BYTES,
    BrokenStream,
    Chunk,
    ClientError,
    ErrorBody,
    SaidError,
    SseDecoder,
    Unreachable,
    chunk_of,
    error_from,
    printable,
)
from node.errors import InvalidRequest, NodeError

MAX_BODY_BYTES = 4 << 20
_HINT = "Start one with `outpost serve`, or with tools/start in a source tree."
_CLOSE_S = 0.5  # for the closing handshake; a dead connection must not hold its reader

Batches = AsyncGenerator[tuple[Iterable[Chunk], float], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A new answer to `body`, or, where there is an `id`, that answer from entry number `start` on.

    `silence_s` is how long a connection may say nothing. `key` makes a second attempt join the generation that the
    first one began; it asks for a resumable answer. `crc` is the CRC-32 of the text before `start`, where it is known:
    the node compares, so that two texts are never mixed.
    """

    body: Mapping[str, Any]
    silence_s: float
    key: str | None = None
    id: str = ""
    start: int = 0
    crc: str = ""


@dataclass(frozen=True, slots=True)
class Connection:
    """An answer that has begun to come: its id (empty where it cannot be resumed), and chunks with their arrival."""

    id: str
    batches: Batches


Connect = Callable[["Http", Wanted], AbstractAsyncContextManager[Connection]]


class Closable(Protocol):
    """What is closed with the connections."""

    async def close(self) -> None: ...


K = TypeVar("K", bound=Closable)


class Http:
    """The connections to one node; an async context."""

    def __init__(
        self, url: str, headers: Mapping[str, str], connect_s: float, silence_s: float, tls: ssl.SSLContext | None
    ) -> None:
        self.url = url
        self._headers = headers
        self._connect_s = connect_s
        self._silence_s = silence_s
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None
        self._kept: dict[object, Closable] = {}

    def keep(self, make: Callable[[Http], K]) -> K:
        """What `make` gives, made once and closed with the rest."""
        if make not in self._kept:
            self._kept[make] = make(self)
        return cast(K, self._kept[make])

    async def open(self) -> None:
        """Before anything else."""
        connector = aiohttp.TCPConnector(limit=0, ssl=self._tls or True)  # limits are the node's business
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)

    async def close(self) -> None:
        """Close every connection, and what is kept beside them."""
        kept, self._kept = self._kept, {}
        for one in kept.values():
            await one.close()
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        accept: Sequence[int] = (),
        headers: Mapping[str, str] | None = None,
        silence_s: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answered request; raises what the node refuses it with."""
        session, data, more = self._alive(), None, dict(headers or {})
        silence_s = silence_s or self._silence_s
        if body is not None:
            data, more["Content-Type"] = _encoded(lambda: msgspec.json.encode(body)), "application/json"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_s, sock_read=silence_s)
        with self._mapped(silence_s):
            async with session.request(
                method, self.url + path, data=data, headers=more, allow_redirects=False, timeout=timeout
            ) as response:
                if response.status != 200 and response.status not in accept:
                    raise await _refusal(response)
                yield response

    @asynccontextmanager
    async def websocket(self, path: str, silence_s: float) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """An open WebSocket; silence ends it as it ends a response."""
        session = self._alive()
        with self._mapped(silence_s):
            async with asyncio.timeout(silence_s):
                socket = await session.ws_connect(
                    "ws" + self.url.removeprefix("http") + path,
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S),
                    heartbeat=silence_s / 1.5,  # a ping after that long, the pong within half as long
                    max_msg_size=MAX_LINE_BYTES,
                    compress=15,
                )
            async with socket:
                yield socket

    def _alive(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("Client is used outside its `async with`.")
        return self._session

    @contextmanager
    def _mapped(self, silence_s: float) -> Iterator[None]:
        try:
            yield
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unreachable(f"no node answers at {self.url} ({_reason(error)}).", hint=_HINT) from error
        except aiohttp.WSServerHandshakeError as error:
            said = SaidError(f"The node refused a WebSocket with {error.status}.")
            raise error_from(error.status, said, _seconds(error.headers or {})) from error
        except TimeoutError as error:
            raise BrokenStream(f"The node at {self.url} was silent for {silence_s:g} seconds.") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise BrokenStream(f"The connection to {self.url} broke ({_reason(error)}).") from error


@asynccontextmanager
async def sse(http: Http, wanted: Wanted) -> AsyncIterator[Connection]:
    """An answer as server-sent events."""
    if wanted.id:
        path = f"/v1/streams/{wanted.id}?from={wanted.start}" + (f"&crc={wanted.crc}" if wanted.crc else "")
        request = http.request("GET", path, silence_s=wanted.silence_s)
    else:
        kept = {} if wanted.key is None else {"Outpost-Resumable": "1", "Idempotency-Key": wanted.key}
        path = "/v1/chat/completions"
        request = http.request("POST", path, wanted.body, headers=kept, silence_s=wanted.silence_s)
    async with request as response, aclosing(_events(response)) as batches:
        yield Connection(_id(wanted, response.headers.get("Outpost-Stream", "")), batches)
        await _let_go(response)


@asynccontextmanager
async def websocket(http: Http, wanted: Wanted) -> AsyncIterator[Connection]:
    """An answer as WebSocket messages."""
    if wanted.id:
        asked = frames.resume(wanted.id, wanted.start, wanted.crc)
    else:
        asked = _encoded(lambda: frames.request(wanted.body, resumable=wanted.key is not None, key=wanted.key))
    async with http.websocket("/v1/ws", wanted.silence_s) as socket:
        await socket.send_str(asked.decode())
        reading = frames.Reading()
        while not reading.stream:
            reading.take(await _message(socket))
        async with aclosing(_messages(socket, reading)) as batches:
            yield Connection(_id(wanted, reading.stream), batches)


TRANSPORTS: Mapping[str, Connect] = {"sse": sse, "ws": websocket}


async def _events(response: aiohttp.ClientResponse) -> Batches:
    decoder = SseDecoder()
    async for data in response.content.iter_any():
        at = time.perf_counter()
        if events := decoder.feed(data):
            whole = "[DONE]" in events
            # Read one by one as they are taken, so that what came before a broken event stands.
            yield map(chunk_of, events[: events.index("[DONE]")] if whole else events), at
            if whole:
                return
    raise BrokenStream("The node closed the connection before the answer was complete.")


async def _messages(socket: aiohttp.ClientWebSocketResponse, reading: frames.Reading) -> Batches:
    while not reading.ended:
        text = await _message(socket)
        if (chunk := reading.take(text)) is not None:
            yield [chunk], time.perf_counter()


async def _message(socket: aiohttp.ClientWebSocketResponse) -> str:
    message = await socket.receive()
    if message.type is aiohttp.WSMsgType.TEXT:
        return str(message.data)
    if message.type is aiohttp.WSMsgType.ERROR and isinstance(message.data, Exception):
        raise BrokenStream(f"The connection broke ({_reason(message.data)}).") from message.data
    raise BrokenStream("The node closed the connection before the answer was complete.")


async def read(response: aiohttp.ClientResponse) -> bytes:
    """The whole body, which is bounded."""
    body = bytearray()
    async for data in response.content.iter_any():
        body += data
        if len(body) > MAX_BODY_BYTES:
            raise BrokenStream(f"The node sent a body of more than {MAX_BODY_BYTES} bytes.")
    return bytes(body)


async def _let_go(response: aiohttp.ClientResponse) -> None:
    """Read the stream's end if it is near, so that the connection can be used again."""
    with suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(0.5):
            await response.content.readany()


async def _refusal(response: aiohttp.ClientResponse) -> NodeError:
    body = await read(response)
    try:
        said = msgspec.json.decode(body, type=ErrorBody).error
    except msgspec.DecodeError:
        start = printable(body[:200].decode(errors="replace"))
        kind = BrokenStream if response.status in (502, 503, 504) else ClientError  # a proxy whose node is away
        return kind(f"{response.url.origin()} answered {response.status} without saying why: {start}")
    return error_from(response.status, said, _seconds(response.headers))


def _seconds(headers: Mapping[str, str]) -> int | None:
    said = headers.get("Retry-After", "")
    return int(said) if said.isdecimal() else None


def _id(wanted: Wanted, said: str) -> str:
    """What to come back with; only those who asked for it may."""
    return said if wanted.key or wanted.id else ""


def _encoded(encode: Callable[[], bytes]) -> bytes:
    try:
        return encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest("The request holds a lone surrogate, which no UTF-8 text can carry.") from error


def _reason(error: Exception) -> str:
    cause = getattr(error, "os_error", None)
    said = (cause.strerror if isinstance(cause, OSError) else None) or str(error) or type(error).__name__
    return printable(said)
