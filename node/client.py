"""The Python client of a node: one session, answers as an async stream of small values.

    async with Client("http://127.0.0.1:8080") as client:
        async with aclosing(client.chat([{"role": "user", "content": "Hi"}], resumable=True)) as events:
            async for event in events: ...

`chat` yields any number of `TextDelta`s and then exactly one `Done`, or raises: a NodeError of the server's own class
when the server said what is wrong (also in the middle of a stream; the text before it stands), `Unreachable` when
nobody answers, `BrokenStream` when the answer stops making sense.

A resumable answer survives its connection: the client comes back for what is missing, as often as it must, and the
application sees a pause and nothing else. Only when the node itself lost entries (a power cut) there is a `TextRewind`
between the texts: forget so many characters, they come anew. `history` tells what happened.

Closing the iterator early closes the connection, which stops a generation that is not resumable within one step; one
that is goes on until `stop`. What the bytes mean is in `chunks.py`, how they come in `transport.py`.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import msgspec
import yarl

from node.answer import Answer, Done, TextDelta, TextRewind, ToolCall, Usage
from node.chunks import BrokenStream, ClientError, SseDecoder, Unreachable
from node.errors import Conflict, InvalidRequest, NodeError
from node.flow import Event, Playout, flowing
from node.linkclient import Moved, link
from node.resume import Effort, Happening, Ledger, Patience, What
from node.settings import Server
from node.transport import TRANSPORTS, Connect, Connection, Http, Wanted, read

__all__ = [
    "BrokenStream",
    "Client",
    "ClientError",
    "Done",
    "Event",
    "Happening",
    "Health",
    "Patience",
    "SseDecoder",
    "TextDelta",
    "TextRewind",
    "ToolCall",
    "Unreachable",
    "Usage",
]

T = TypeVar("T")
Transport = Literal["sse", "ws", "link"]
_CONNECT: Mapping[str, Connect] = {**TRANSPORTS, "link": link}
_REMEMBERED = 1000


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


class _Prefixes(msgspec.Struct):
    prefixes: list[dict[str, Any]]


class _Forgotten(msgspec.Struct):
    forgotten: int


class Client:
    """One session with the node at `base_url`; use it as an async context manager.

    `connect_s` bounds the making of a connection, `silence_s` the time without a single byte (keepalives count).
    `tls` is a context of one's own, for a certificate that no public authority has signed. `patience` is for resumable
    answers; `rng` (numbers from 0 to 1) and `sleep` shape their pauses.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        connect_s: float = 5.0,
        silence_s: float = 120.0,
        tls: ssl.SSLContext | None = None,
        patience: Patience | None = None,
        rng: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._url = _base(base_url)
        headers = {"Accept-Encoding": "identity"}  # a proxy that compresses also buffers
        if api_key:
            if not (api_key.isascii() and api_key.isprintable()):
                raise ClientError("An API key is printable ASCII; this one cannot be sent.")
            headers["Authorization"] = f"Bearer {api_key}"
        self._http = Http(self._url, headers, connect_s, silence_s, tls)
        self._silence_s = silence_s
        self._patience = patience or Patience()
        self._rng = rng
        self._sleep = sleep
        self.history: deque[Happening] = deque(maxlen=_REMEMBERED)

    async def __aenter__(self) -> Self:
        await self._http.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        seed: int | None = None,
        resumable: bool = False,
        transport: Transport = "sse",
        playout: Playout | None = None,
        **more: Any,
    ) -> AsyncGenerator[Event, None]:
        """Stream the answer to a conversation; `more` goes into the request as it is (model, stop, tools …).

        Over a link the answer is always resumable: it moves between the link and a WebSocket. A `playout` buffer
        (`node.stream.playout.Playout`) smooths the flow for people who read it.
        """
        if more.get("n", 1) != 1:
            raise InvalidRequest("This client reads one answer per request.", param="n")
        named = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
        body = {"messages": messages, "stream": True, "stream_options": {"include_usage": True}}
        body |= {key: value for key, value in named.items() if value is not None} | more
        wanted = Wanted(body, self._silence_s)
        if resumable or transport == "link":
            wanted = Wanted(body, self._short_silence_s, key=uuid.uuid4().hex)
        events = self._follow(wanted, transport)
        return events if playout is None else flowing(events, playout)

    def stream(self, id: str, start: int = 0, *, transport: Transport = "sse") -> AsyncGenerator[Event, None]:
        """Stream a resumable answer that was begun before, from entry number `start` on."""
        if not (id.isascii() and id.replace("-", "").replace("_", "").isalnum()) or start < 0:
            raise InvalidRequest("A stream is named by its id and a number from 0.", param="id")
        return self._follow(Wanted({}, self._short_silence_s, id=id, start=start), transport)

    async def stop(self, id: str) -> None:
        """Stop a resumable answer, for all its readers."""
        async with self._http.request("DELETE", f"/v1/streams/{id}") as response:
            await read(response)

    async def models(self) -> list[str]:
        """The ids of the models that the node serves."""
        async with self._http.request("GET", "/v1/models") as response:
            body = await read(response)
        try:
            return [model.id for model in msgspec.json.decode(body, type=_Listing).data]
        except msgspec.DecodeError as error:
            raise BrokenStream(f"What answers at {self._url} does not list models ({error}).") from error

    async def health(self) -> Health:
        """Whether the node is ready; raises ClientError when what answers is not a node."""
        async with self._http.request("GET", "/health/ready", accept=(503,)) as response:
            body = await read(response)
        try:
            said = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ClientError(f"What answers at {self._url} is not a node.") from error
        return Health(response.status == 200, response.status, said)

    async def status(self) -> Mapping[str, Mapping[str, Any]]:
        """What the node says of itself, a section a part; raises ClientError when what answers is not a node."""
        return await self._told("GET", "/v1/status", dict[str, dict[str, Any]])

    async def prewarm(self) -> list[dict[str, Any]]:
        """Which prefixes the node wants warm, where and why; the most saving first."""
        return (await self._told("GET", "/v1/prewarm", _Prefixes)).prefixes

    async def forget_prompts(self) -> int:
        """Let the node erase its prompt history and all states; gives how many prefixes it knew."""
        return (await self._told("DELETE", "/v1/prewarm", _Forgotten)).forgotten

    async def _told(self, method: str, path: str, kind: type[T]) -> T:
        async with self._http.request(method, path) as response:
            body = await read(response)
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.DecodeError as error:
            raise ClientError(f"What answers at {self._url} is not a node.") from error

    @property
    def _short_silence_s(self) -> float:
        return min(self._silence_s, self._patience.silence_s)

    async def _follow(self, wanted: Wanted, transport: Transport) -> AsyncGenerator[Event, None]:
        """One answer over as many connections as it takes; one that cannot be resumed has one."""
        connect = _CONNECT[transport]
        ledger = Ledger(Answer(time.perf_counter()), wanted.start)
        effort = Effort(self._patience, self._rng)
        while True:
            try:
                async with connect(self._http, wanted) as connection:
                    wanted = self._opened(connection, wanted, ledger, effort)
                    async for chunks, at in connection.batches:
                        for chunk in chunks:
                            if event := ledger.take(chunk, at):
                                effort.progress()
                                yield event
                        if ledger.torn:
                            break
                    else:
                        yield ledger.done(at)
                        return
            except NodeError as error:
                rewound, pause_s = self._lost(error, wanted, ledger, effort)
                await self._sleep(pause_s)
                if rewound is not None:
                    yield rewound
            wanted = replace(wanted, start=ledger.last + 1, crc="" if "tools" in wanted.body else ledger.crc)

    def _opened(self, connection: Connection, wanted: Wanted, ledger: Ledger, effort: Effort) -> Wanted:
        """Notes a connection; what is wanted from now on is this very answer."""
        effort.opened(time.perf_counter())
        again = ledger.opened()
        if wanted.key or wanted.id:
            self._note(connection.id, "resumed" if again else "opened", ledger)
        return replace(wanted, id=connection.id)

    def _lost(
        self, error: NodeError, wanted: Wanted, ledger: Ledger, effort: Effort
    ) -> tuple[TextRewind | None, float]:
        """What to take back and how long to wait before coming again; raises `error` where that makes no sense."""
        if not wanted.id and (wanted.key is None or ledger.connections):
            raise error
        if isinstance(error, Conflict) and wanted.id and ledger.last >= 0:
            rewound = ledger.ahead(error, time.perf_counter())
            self._note(wanted.id, "rewound", ledger, error.message)
            return rewound, 0.0
        if isinstance(error, Moved):
            self._note(wanted.id, "moved", ledger, error.message)
            return None, 0.0
        pause_s = effort.after(error, time.perf_counter())
        self._note(wanted.id, "lost", ledger, error.message)
        return None, pause_s

    def _note(self, id: str, what: What, ledger: Ledger, why: str = "") -> None:
        self.history.append(Happening(id, what, ledger.last, time.perf_counter(), why))


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
