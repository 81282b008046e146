"""The generations of one WebSocket connection, and the line on which they take turns.

Each generation is a task that reads its session's journal from its own cursor, at the pace that the connection's pacer
allows: while its reader is slow, all but a window of text waits in the journals. One message is written at a time, and
the next when the transport took the last. Nothing here may be cancelled while the connection lives: aiohttp's writers
wait on one common future, which a cancelled one would take with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from aiohttp import WSMsgType, web

from node.errors import NodeError, Overloaded, Unavailable
from node.generation import Finished, Service
from node.server import replies, wsframes, wsproto
from node.server.answer import Answerer, checked, skip
from node.server.boundary import too_large
from node.server.callers import Asker
from node.server.chat import CHAT, TEXT, Completions
from node.server.level import EVERYTHING, Conditions, Levels
from node.server.meter import CLIENT_GONE, Meter
from node.server.paced import Paced, Wire
from node.server.replays import key_of
from node.server.replies import Reply
from node.server.streams import Streams
from node.server.work import Running
from node.server.wsproto import Ref, Told, Wrong
from node.settings import Settings
from node.stream.session import Piece, Session

_MOST_REPLIES = 32

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """What answering needs of the node; the same that HTTP uses."""

    settings: Settings
    service: Service
    meter: Meter
    answerer: Answerer
    completions: Completions
    streams: Streams


@dataclass(frozen=True, slots=True)
class Client:
    """Who is at the other end: the header it came with, whose generations it may read, and how it asks for new ones."""

    authorization: str
    owner: bytes
    asker: Asker


class Outlet(Protocol):
    """Where the messages of a connection's generations go."""

    levels: Levels | None
    wire: Wire

    async def send(self, make: Callable[[], Told | None]) -> None: ...

    def post(self, reply: Told | bytes) -> None: ...


class Line:
    """A connection's outgoing half: one write at a time. `levels`, `binary` and `framed` are how its messages look."""

    def __init__(self, socket: web.WebSocketResponse, wire: Wire, *, binary: bool) -> None:
        self.levels: Levels | None = None
        self.binary = binary
        self.framed = False
        self.wire = wire
        self._socket = socket
        self._turn = asyncio.Lock()
        self._replies: asyncio.Queue[Told | bytes] = asyncio.Queue()

    async def send(self, make: Callable[[], Told | None]) -> None:
        """Write what `make` gives when the turn has come; waits while the reader lags."""
        async with self._turn:
            if (message := make()) is not None:
                await self._write(message)

    def post(self, reply: Told | bytes) -> None:
        """Write a short reply, or a pong with these bytes, as soon as possible."""
        self._replies.put_nowait(reply)

    async def room(self) -> None:
        """Wait while too many replies wait: whoever asks without reading is not listened to."""
        if self._replies.qsize() >= _MOST_REPLIES:
            await self._replies.join()

    async def write_replies(self) -> None:
        """Write what is posted, for ever."""
        while True:
            reply = await self._replies.get()
            async with self._turn:
                await self._write(reply)
            self._replies.task_done()

    async def _write(self, message: Told | bytes) -> None:
        if isinstance(message, bytes):
            await self._socket.pong(message)
            return
        data = wsframes.encode(message) if self.framed and not self.binary else None
        kind = WSMsgType.BINARY if self.binary or data is not None else WSMsgType.TEXT
        if data is None:
            data = wsproto.encode(message, binary=self.binary)
        await self._socket.send_frame(data, kind)
        self.wire.wrote(len(data))


@dataclass(slots=True)
class _Generation:
    """One of them, from its request on; `session` once it is submitted."""

    ref: Ref
    arrived: float
    interrupted: bool = False
    session: Session | None = None


class Answers:
    """All generations of one connection. `changed` hears how many run."""

    def __init__(self, line: Outlet, parts: Parts, client: Client, changed: Callable[[int], None]) -> None:
        self._line = line
        self._parts = parts
        self._client = client
        self._changed = changed
        self._running: dict[Ref, _Generation] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    def refuse(self, error: NodeError, ref: Ref | None) -> None:
        """Say what is wrong; it must not sound like the end of a generation that runs."""
        known = None if ref in self._running else ref
        self._line.post(wsproto.problem(error, known, replies.error_body(error)))

    def start(self, message: wsproto.Request | wsproto.Resume) -> None:
        """Begin or resume one; what goes wrong later is told on the line. Raises when it cannot be taken on."""
        if message.id in self._running:
            raise Wrong("This id is in use by a generation that runs on this connection.", message.id, param="id")
        most = self._parts.settings.websocket.max_generations
        if len(self.tasks) >= most:
            raise Overloaded(f"This connection runs {most} generations already.", retry_after=1)
        loop = asyncio.get_running_loop()
        generation = self._running[message.id] = _Generation(message.id, loop.time())
        self._changed(len(self._running))
        task = loop.create_task(self._answer(generation, message))
        self.tasks.add(task)
        task.add_done_callback(partial(self._over, message.id))

    def interrupt(self, ref: Ref) -> None:
        """Stop one; its task tells how far it got."""
        generation = self._running.get(ref)
        if generation is None:
            raise Wrong("No generation of this id runs on this connection.", param="id")
        generation.interrupted = True
        if generation.session is not None:
            generation.session.cancel()

    def _over(self, ref: Ref, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ConnectionError):
            _log.error("a generation's reader failed", exc_info=error)
            self._forget(ref)
            self.refuse(NodeError("The node failed to handle this request; its log says why."), ref)

    def _forget(self, ref: Ref) -> None:
        self._running.pop(ref, None)
        self._changed(len(self._running))

    async def _answer(self, generation: _Generation, message: wsproto.Request | wsproto.Resume) -> None:
        status, is_new = CLIENT_GONE, isinstance(message, wsproto.Request)
        try:
            if isinstance(message, wsproto.Request):
                last = await self._begun(generation, message)
            else:
                last = await self._resumed(generation, message)
            status = 200
        except NodeError as error:
            _log.info("error answered", extra={"path": "/v1/ws", "status": error.status, "code": error.code})
            status = error.status
            last = wsproto.problem(error, generation.ref, replies.error_body(error))
        finally:
            if is_new:
                self._parts.meter.request(status)
        await self._line.send(partial(self._last, generation.ref, last))

    def _last(self, ref: Ref, message: Told) -> Told:
        self._forget(ref)  # before it is written: the reader may use the name again at once
        return message

    async def _begun(self, generation: _Generation, message: wsproto.Request) -> Told:
        parts = self._parts
        if parts.service.draining:
            raise Unavailable("This node is stopping and takes no new requests.", retry_after=5)
        path, body = CHAT if message.route == "chat" else TEXT, bytes(message.body)
        if len(body) > parts.settings.server.max_body_bytes:
            raise too_large(parts.settings.server.max_body_bytes)
        resumable = parts.answerer.outlives(message.resumable, "resumable")
        key = key_of(message.key, self._client.authorization, path, body) if message.key else None
        work = await parts.completions.plan(path, body, self._client.asker)
        if generation.interrupted:
            return wsproto.Interrupted(id=generation.ref, seq=-1)
        running = await parts.answerer.begin(work, self._client.owner, resumable, key)
        return await self._follow(generation, running, 0)

    async def _resumed(self, generation: _Generation, message: wsproto.Resume) -> Told:
        checksum = int(message.crc, 16) if message.crc else None
        found = await self._parts.streams.find_from(message.stream, self._client.owner, message.start, checksum)
        return await self._follow(generation, *found)

    async def _follow(self, generation: _Generation, running: Running, start: int, rewind: bool = False) -> Told:
        """Everything from entry `start` on; gives the last message."""
        session, ref, line = running.session, generation.ref, self._line
        with self._parts.answerer.reading(running):
            generation.session = session
            if generation.interrupted:
                session.cancel()
            reply = running.reply()
            skip(session, reply, start)
            accepted = wsproto.Accepted(
                id=ref,
                stream=session.request.id,
                resumable=running.resumable,
                priority=session.request.level,
                degraded=running.work.degraded or None,
            )
            await line.send(lambda: accepted)
            if rewind:
                await line.send(lambda: wsproto.Rewind(id=ref, seq=start - 1))
            await self._pieces(generation, session, reply, start)
            return self._ending(generation, session, reply)

    async def _pieces(self, generation: _Generation, session: Session, reply: Reply, cursor: int) -> None:
        line, meter = self._line, self._parts.meter
        last, observe = generation.arrived, meter.first_text if cursor == 0 else meter.gap
        with Paced(line.wire, session, cursor) as paced:
            while not paced.done:
                if piece := await paced.next():  # silence is the heartbeat's business
                    await line.send(partial(self._token, generation.ref, reply, piece))
                    sent = line.wire.clock()
                    observe(sent - last)
                    last, observe = sent, meter.gap

    def _token(self, ref: Ref, reply: Reply, piece: Piece) -> Told | None:
        level = self._level(reply)
        if reply.plain and piece.text:
            part = wsproto.Part(
                {reply.plain: piece.text}
            )  # what its events would say, without writing and reading them
        else:
            part = wsproto.part(reply.piece(piece), level)
        if not part.delta and part.logprobs is None:
            return None
        return wsproto.Token(id=ref, seq=piece.cursor - 1, delta=part.delta, logprobs=part.logprobs)

    def _level(self, reply: Reply) -> int:
        """How much may be told now; says so when that changed."""
        levels, wire = self._line.levels, self._line.wire
        if levels is None:
            return EVERYTHING
        now = wire.clock()
        if reason := levels.observe(Conditions(wire.pacer.rtt_s, self._parts.meter.memory_free(now)), now):
            self._line.post(wsproto.LevelChange(level=levels.level, reason=reason))
        return max(levels.level, reply.least_level)

    def _ending(self, generation: _Generation, session: Session, reply: Reply) -> Told:
        seq, end = session.count - 1, session.end
        if generation.interrupted and isinstance(end, Finished) and end.reason == "cancelled":
            return wsproto.Interrupted(id=generation.ref, seq=seq)
        assert end is not None
        whole, level = checked(end), self._level(reply)
        part = wsproto.part(reply.closing(whole, session.cached_tokens, seq), level)
        usage = reply.usage(whole, session.cached_tokens) if level > 1 else None
        return wsproto.Finish(id=generation.ref, reason=part.reason, seq=seq, delta=part.delta or None, usage=usage)
