"""GET /v1/ws: the upgrade, and a connection's life. What is said on it stands in wsproto, who answers in wsanswers.

A connection has its reader (the handler itself), a task that writes replies, one that keeps the heartbeat, and one a
generation. However it ends, they end with it in the same step.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter as Tally
from collections.abc import Coroutine, Iterator, Sequence

from aiohttp import WSCloseCode, WSMessage, WSMsgType, hdrs, web
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from node.errors import Forbidden, InvalidRequest, NodeError, Unavailable
from node.server import wsproto
from node.server.guard import authorization_of, origin_allowed
from node.server.heartbeat import Act, Heartbeat, State
from node.server.level import EVERYTHING, Levels
from node.server.paced import Wire
from node.server.wsanswers import Answers, Client, Line, Parts

PATH = "/v1/ws"
GOING_AWAY, SILENT = 1001, 1011
_ABNORMAL = 1006  # means that no close frame came, so none may carry it
_PROTOCOLS = (wsproto.JSON_PROTOCOL, wsproto.BINARY_PROTOCOL, wsproto.FRAME_PROTOCOL)
_CLOSE_S = 0.5

_log = logging.getLogger(__name__)


def make_socket(max_message_bytes: int) -> web.WebSocketResponse:
    """A WebSocket as this node speaks it: deflate if offered, bounded messages, every full buffer waited for."""
    return web.WebSocketResponse(
        timeout=_CLOSE_S,
        autoclose=False,
        autoping=False,
        protocols=_PROTOCOLS,
        compress=True,
        max_msg_size=max_message_bytes,
        writer_limit=0,
    )


async def answer_close(socket: web.WebSocketResponse, message: WSMessage) -> None:
    """The client's goodbye gets one back; aiohttp's own would take an impossible code for a good one."""
    if message.type is WSMsgType.CLOSE:
        code = WSCloseCode.PROTOCOL_ERROR if message.data == _ABNORMAL else WSCloseCode.OK
        await socket.close(code=code, drain=False)


class WebSockets(Collector):
    """The route, and all connections."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._connections: set[Connection] = set()

    def add_to(self, app: web.Application) -> None:
        """Add the route, its metric, and the goodbye when the node stops."""
        app.router.add_get(PATH, self._handle, allow_head=False)
        app.on_shutdown.append(self._stop)
        self._parts.meter.add(self)

    def collect(self) -> Iterator[Metric]:
        """How many connections there are in each state."""
        tally = Tally(connection.heart.state for connection in self._connections)
        family = GaugeMetricFamily("llm_websocket_connections", "WebSocket connections, by state", labels=("state",))
        for state in State:
            family.add_metric((state,), tally[state])
        yield family

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        settings = self._parts.settings
        _check(request, settings.server.allowed_origins)
        if len(self._connections) >= settings.websocket.max_connections:
            raise Unavailable("This node has as many WebSocket connections as it may.", retry_after=5)
        identity = self._parts.answerer.identity
        client = Client(authorization_of(request), identity.owner(request), identity.asker(request))
        socket = make_socket(settings.websocket.max_message_bytes)
        connection = Connection(request, socket, self._parts, client)
        self._connections.add(connection)
        try:
            await socket.prepare(request)
            await connection.run()
        finally:
            self._connections.discard(connection)
        return socket

    async def _stop(self, app: web.Application) -> None:
        await asyncio.gather(*(connection.stop() for connection in self._connections))


class Connection:
    """One client."""

    def __init__(self, request: web.Request, socket: web.WebSocketResponse, parts: Parts, client: Client) -> None:
        self._request = request
        self._client = client
        self._socket = socket
        self._settings = parts.settings.websocket
        self._now = asyncio.get_running_loop().time
        self.heart = Heartbeat(self._settings.heartbeat_s)
        self._parts = parts
        self._tasks: set[asyncio.Task[None]] = set()
        self._beat: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve it until one side says goodbye or it is lost."""
        self._answers, self._line = self._attach()
        self.heart.opened(self._now())
        self._keep(self._line.write_replies())
        self._beat = self._keep(self._keep_beat())
        _log.info("websocket opened", extra={"binary": self._line.binary, "deflate": bool(self._socket.compress)})
        try:
            await self._read()
        finally:
            self.heart.closing()
            ending = [*self._tasks, *self._answers.tasks]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
            self.heart.closed()
            _log.info("websocket closed", extra={"code": self._socket.close_code})

    def _attach(self) -> tuple[Answers, Line]:
        request, settings = self._request, self._parts.settings
        if request.transport is None:
            raise ConnectionResetError("the client is gone")
        wire = Wire(request.transport, self._parts.meter, settings.streams.reader_buffer_bytes)
        line = Line(self._socket, wire, binary=self._socket.ws_protocol == wsproto.BINARY_PROTOCOL)
        line.framed = self._socket.ws_protocol == wsproto.FRAME_PROTOCOL
        return Answers(line, self._parts, self._client, self.heart.runs), line

    async def stop(self) -> None:
        """The node stops: let what has ended be read, then say goodbye."""
        if self._socket.prepared and self._answers.tasks:
            await asyncio.wait(self._answers.tasks, timeout=_CLOSE_S)
        await self._close(GOING_AWAY, b"the node is stopping")

    async def _read(self) -> None:
        while True:
            await self._line.room()
            message = await self._socket.receive()
            self.heart.heard()
            if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                self._take(message.data)
            elif message.type is WSMsgType.PING:
                self._line.post(bytes(message.data))
            elif message.type is WSMsgType.PONG:
                self._ponged(bytes(message.data))
            else:
                await answer_close(self._socket, message)
                return

    def _ponged(self, payload: bytes) -> None:
        wire = self._line.wire
        trip = self.heart.ponged(payload, self._now())
        if trip is not None and not wire.pacer.lags:  # else it waited behind our own queue
            wire.hear(*trip)

    def _take(self, data: str | bytes) -> None:
        ref: wsproto.Ref | None = None
        try:
            message = wsproto.decode(data)
            if isinstance(message, wsproto.Request | wsproto.Resume):
                ref = message.id
                self._answers.start(message)
            elif isinstance(message, wsproto.Interrupt):
                self._answers.interrupt(message.id)
            elif isinstance(message, wsproto.Hello):
                self._agree(message)
            else:
                self._line.post(wsproto.Pong(t=message.t))
        except wsproto.Wrong as error:
            self._answers.refuse(error, error.ref)
        except NodeError as error:
            self._answers.refuse(error, ref)

    def _agree(self, hello: wsproto.Hello) -> None:
        line, heart = self._line, self.heart
        line.levels = line.levels if hello.level is None else Levels(hello.level)
        line.binary = line.binary if hello.binary is None else hello.binary
        if hello.heartbeat_s is not None:
            heart.change(hello.heartbeat_s, self._now())
            if self._beat is not None:
                self._beat.cancel()
            self._beat = self._keep(self._keep_beat())
        terms = wsproto.Terms(
            level=line.levels.asked if line.levels else EVERYTHING,
            binary=line.binary,
            heartbeat_s=heart.period_s,
            max_message_bytes=self._settings.max_message_bytes,
            max_generations=self._settings.max_generations,
        )
        line.post(terms)

    async def _keep_beat(self) -> None:
        while self.heart.alive:
            began = self._now()
            await asyncio.sleep(self.heart.due(began))
            pacer = self._line.wire.pacer
            if pacer.unread and pacer.moved > began:
                self.heart.heard()  # a ping may wait long behind what a slow link still takes
            act = self.heart.tick(self._now())
            if act is Act.PING and not self._request.protocol.writing_paused:  # behind a full buffer it says nothing
                self._keep(self._ping())
            elif act is Act.CLOSE:
                await self._close(SILENT, b"no sign of life")

    async def _ping(self) -> None:
        with contextlib.suppress(ConnectionError):
            await self._socket.ping(self.heart.ping(self._now()))

    async def _close(self, code: int, reason: bytes) -> None:
        """Say goodbye, but wait for nobody: what a reader does not take in a moment is dropped."""
        self.heart.closing()
        transport, gone = self._request.transport, code == SILENT
        try:
            if self._socket.prepared:
                async with asyncio.timeout(_CLOSE_S):
                    await self._socket.close(code=code, message=reason)
        except TimeoutError:
            gone = True
        finally:
            if gone and transport is not None:
                transport.abort()

    def _keep(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._dropped)
        return task

    def _dropped(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ConnectionError):
            _log.error("a connection's task failed", exc_info=error)


def _check(request: web.Request, allowed_origins: Sequence[str]) -> None:
    """Refuse what cannot become a connection, while it is still HTTP."""
    if not origin_allowed(request, allowed_origins):
        raise Forbidden("Pages of this origin may not call this node (server.allowed_origins).")
    if request.headers.get(hdrs.UPGRADE, "").strip().lower() != "websocket":
        raise InvalidRequest("This route speaks WebSocket; ask for an upgrade.")
    offered = [name.strip() for name in request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "").split(",")]
    if offered != [""] and not set(offered) & set(_PROTOCOLS):
        # Here, because aiohttp would log what was offered, which may be a key.
        raise InvalidRequest(f"None of the subprotocols is spoken here; there are {', '.join(_PROTOCOLS)}.")
