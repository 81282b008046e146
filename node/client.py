"""The Python client of a node: one session, answers as an async stream of small values.

    async with Client("http://127.0.0.1:8080") as client:
        async with aclosing(client.chat([{"role": "user", "content": "Hi"}])) as events:
            async for event in events: ...

`chat` yields any number of `TextDelta`s and then exactly one `Done`, or raises: a NodeError of the server's own class
when the server said what is wrong (also in the middle of a stream; the text before it stands), `Unreachable` when
nobody answers, `BrokenStream` when the answer stops making sense. Closing the iterator early closes the connection,
which is how the server learns to stop. What the bytes mean is in `answer.py`.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec
import yarl

from node.answer import (
    Answer,
    BrokenStream,
    ClientError,
    Done,
    ErrorBody,
    SseDecoder,
    TextDelta,
    ToolCall,
    Unreachable,
    Usage,
    error_from,
    printable,
)
from node.errors import InvalidRequest, NodeError
from node.settings import Server

__all__ = [
    "BrokenStream",
    "Client",
    "ClientError",
    "Done",
    "Health",
    "SseDecoder",
    "TextDelta",
    "ToolCall",
    "Unreachable",
    "Usage",
]

_MAX_BODY_BYTES = 4 << 20
_HINT = "Start one with `outpost serve`, or with tools/start in a source tree."


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the node is ready to answer, and what it said about itself."""

    ready: bool
    status: int
    body: Mapping[str, Any]


class _Listed(msgspec.Struct):
    id: str


class _Listing(msgspec.Struct):
    data: list[_Listed]


class Client:
    """One session with the node at `base_url`; use it as an async context manager.

    `connect_s` bounds the making of a connection, `silence_s` the time without a single byte (keepalives count).
    `tls` is a context of one's own, for a certificate that no public authority has signed.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        connect_s: float = 5.0,
        silence_s: float = 120.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._url = _base(base_url)
        self._headers = {"Accept-Encoding": "identity"}  # a proxy that compresses also buffers
        if api_key:
            if not (api_key.isascii() and api_key.isprintable()):
                raise ClientError("An API key is printable ASCII; this one cannot be sent.")
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_s, sock_read=silence_s)
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, ssl=self._tls or True)  # limits are the node's business
        self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout, headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        seed: int | None = None,
        **more: Any,
    ) -> AsyncGenerator[TextDelta | Done, None]:
        """Stream the answer to a conversation; `more` goes into the request as it is (model, stop, tools …)."""
        if more.get("n", 1) != 1:
            raise InvalidRequest("This client reads one answer per request.", param="n")
        named = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
        body = {"messages": messages, "stream": True, "stream_options": {"include_usage": True}}
        body |= {key: value for key, value in named.items() if value is not None} | more
        answer, decoder = Answer(time.perf_counter()), SseDecoder()
        async with self._request("POST", "/v1/chat/completions", body) as response:
            async for data in response.content.iter_any():
                at = time.perf_counter()
                for event in decoder.feed(data):
                    if event == "[DONE]":
                        yield answer.done(at)
                        await _let_go(response)
                        return
                    if text := answer.take(event, at):
                        yield TextDelta(text, at)
        raise BrokenStream("The node closed the connection before the answer was complete.")

    async def models(self) -> list[str]:
        """The ids of the models that the node serves."""
        async with self._request("GET", "/v1/models") as response:
            body = await _read(response)
        try:
            return [model.id for model in msgspec.json.decode(body, type=_Listing).data]
        except msgspec.DecodeError as error:
            raise BrokenStream(f"What answers at {self._url} does not list models ({error}).") from error

    async def health(self) -> Health:
        """Whether the node is ready; raises ClientError when what answers is not a node."""
        async with self._request("GET", "/health/ready", accept=(503,)) as response:
            body = await _read(response)
        try:
            said = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ClientError(f"What answers at {self._url} is not a node.") from error
        return Health(response.status == 200, response.status, said)

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: Any = None, accept: Sequence[int] = ()
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answered request; every foreign exception becomes one of ours here."""
        if self._session is None:
            raise RuntimeError("Client is used outside its `async with`.")
        data, headers = None, None
        if body is not None:
            data, headers = _encode(body), {"Content-Type": "application/json"}
        try:
            async with self._session.request(
                method, self._url + path, data=data, headers=headers, allow_redirects=False
            ) as response:
                if response.status != 200 and response.status not in accept:
                    raise await _refusal(response)
                yield response
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unreachable(f"no node answers at {self._url} ({_reason(error)}).", hint=_HINT) from error
        except TimeoutError as error:
            silence = self._timeout.sock_read or 0
            raise BrokenStream(f"The node at {self._url} was silent for {silence:g} seconds.") from error
        except aiohttp.ClientError as error:
            raise BrokenStream(f"The connection to {self._url} broke ({_reason(error)}).") from error


def url_of(server: Server) -> str:
    """Where the node with these settings is reached from its own machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(server.host, server.host)
    scheme = "https" if server.tls_certificate else "http"
    return f"{scheme}://[{host}]:{server.port}" if ":" in host else f"{scheme}://{host}:{server.port}"


def tls_of(server: Server) -> ssl.SSLContext | None:
    """A context that trusts exactly the certificate in the settings; None where the node has none."""
    if not server.tls_certificate:
        return None
    try:
        context = ssl.create_default_context(cafile=server.tls_certificate)
    except (OSError, ssl.SSLError) as error:
        raise ClientError(f"Cannot use server.tls_certificate {server.tls_certificate} ({error}).") from error
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the file holds the node's own certificate, not a root
    context.check_hostname = False  # it may name the machine, and we call it by its loopback address
    return context


def _base(url: str) -> str:
    try:
        parsed = yarl.URL(url)
    except ValueError as error:
        raise ClientError(f"{url!r} is not an address ({error}).") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ClientError(f"{url!r} is not the address of a node.", hint="Write it like http://127.0.0.1:8080")
    return str(parsed.with_query(None).with_fragment(None)).rstrip("/").removesuffix("/v1").rstrip("/")


def _encode(body: Any) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        raise InvalidRequest("The request holds a lone surrogate, which no UTF-8 text can carry.") from error


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for data in response.content.iter_any():
        body += data
        if len(body) > _MAX_BODY_BYTES:
            raise BrokenStream(f"The node sent a body of more than {_MAX_BODY_BYTES} bytes.")
    return bytes(body)


async def _let_go(response: aiohttp.ClientResponse) -> None:
    """Read the stream's end if it is near, so that the connection can be used again."""
    with suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(0.5):
            await response.content.readany()


async def _refusal(response: aiohttp.ClientResponse) -> NodeError:
    body = await _read(response)
    try:
        said = msgspec.json.decode(body, type=ErrorBody).error
    except msgspec.DecodeError:
        start = printable(body[:200].decode(errors="replace"))
        return ClientError(f"{response.url.origin()} answered {response.status} without saying why: {start}")
    seconds = response.headers.get("Retry-After", "")
    return error_from(response.status, said, int(seconds) if seconds.isdecimal() else None)


def _reason(error: Exception) -> str:
    cause = getattr(error, "os_error", None)
    said = (cause.strerror if isinstance(cause, OSError) else None) or str(error) or type(error).__name__
    return printable(said)
