"""The only place where the parts are joined, started and stopped.

Start: store, model file → engine in its thread → keeper of warm prefixes → gate (together a `Serving`) → server; then
one token is really decoded, and generations that a dead process left unfinished go on; only after that the node is
ready. Stop (SIGTERM, SIGINT): refuse new requests, answer "not ready", let what runs finish within the grace period;
what is resumable then goes on in the next life, with its state.

To join another part: write one line in `_join`, or in `_front` where it is a stage on a request's way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import ssl
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
from aiohttp import web

from node.admission import policy
from node.engine.power import Allowance, Look, look_at_machine, watch
from node.errors import SettingsError, Unavailable
from node.fleet import profiles
from node.fleet.boot import Upkeep, over
from node.fleet.pinned import Pinned
from node.fleet.share import MeshPeer, add_chunks
from node.fleet.wakeup import Wakeup
from node.generation import Admission, Load, Model, Prewarming, Sampling, TokenSource, Warmth
from node.machine.memory import memory, resident
from node.mesh import identity
from node.mesh.crossing import Crossing
from node.mesh.listener import PEER
from node.mesh.neighbours import Neighbours
from node.mesh.places import Neighbourhood, nothing_warm
from node.mesh.portrait import Portrait
from node.mesh.post import PostOffice
from node.mesh.wire import PATH as GENERATE
from node.served import Served
from node.server.app import STREAMS, create_app
from node.serving import Serving
from node.settings import Settings, home
from node.store.db import Database
from node.store.streams import StreamStore
from node.tuning.auto import AutoTune, Bell, wanted

log = logging.getLogger(__name__)

# A thread that wants the GIL asks for it after this long (Python's default is 5 ms, half a decode step).
_SWITCH_INTERVAL_S = 0.0005
_MAX_HEADER_BYTES = 16 << 10
_STEER_S = 1.0
_SYNC: Mapping[str, Literal["NORMAL", "FULL"]] = {"process": "NORMAL", "power": "FULL"}


class Part(Protocol):
    """Something that works beside the model. `status` is its sections, of plain values, seconds and bytes."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def status(self) -> Mapping[str, Mapping[str, Any]]: ...


class Node:
    """A running node. `start` it, use `url`, `stop` it; it is also the server's `Service`.

    `tuning` is the command that tunes its model, for when it is idle; a node that is given none never tunes itself.
    Without a `neighbourhood` it is alone.
    """

    def __init__(
        self,
        settings: Settings,
        tuning: Sequence[str] = (),
        look: Look = look_at_machine,
        neighbourhood: Neighbourhood | None = None,
        upkeep: Upkeep | None = None,
    ) -> None:
        self._settings = settings
        self._upkeep = upkeep or Upkeep(over(settings))
        policy.rules(settings.queue)  # what is absurd is told before a model is loaded
        self._quotas = policy.quotas(settings)
        self._tuning = tuning if tuning and wanted(settings) else ()
        self._auto_tune: AutoTune | None = None
        self._allowance, self._look = Allowance(settings.power), look
        self._background: list[asyncio.Task[None]] = []
        self._parts: list[Part] = []
        self._runner: web.AppRunner | None = None
        self._stopping = False
        path = _database_file(settings)
        self._database = Database(path, _SYNC[settings.streams.durability]) if path else None
        self._neighbours = _neighbours(settings, Portrait(lambda: self._serving, look))
        self._neighbours.add(self._serve_neighbours)
        self._warm_share = self._neighbours.warm_share if neighbourhood is None else nothing_warm
        self._around = neighbourhood or (self._neighbours if self._neighbours.enrolled else None)
        self._join_fleet()
        self._served = Served(self._make(settings, self._upkeep.pinned), self._make, self._front)
        self.post = PostOffice(settings)  # what waits for the network; open for as long as anybody may be answered
        self.post.mesh = self._neighbours.session
        self._neighbours.add(self.post.serve_neighbours)
        self._updater = self._upkeep.updater(self._served, settings, self._is_powered, self._report)
        self.url = ""
        self.started = False

    def _make(self, settings: Settings, pinned: Pinned | None = None) -> Serving:
        return Serving(settings, self._quotas, self._database, self._around, self._warm_share, pinned, self._look)

    def _front(self, serving: Serving) -> TokenSource:
        """The stages before a model's own queue, the last one to see a request first."""
        source = serving.source
        if self._auto_tune is not None:
            source = Bell(source, self._auto_tune.request)
        return source

    def _join(self) -> list[Part]:
        """What works beside the model, in the order of starting; the node listens, and has a model, by then."""
        wakeup = Wakeup(self._settings.fleet, self._upkeep.node_id, self._updater.wake)
        return [self._neighbours, self._updater, wakeup]

    def _serve_neighbours(self, app: web.Application) -> None:
        """Answer them, each time with the model that is served then."""

        async def generate(request: web.Request) -> web.StreamResponse:
            return await self.crossing.answer(request, request[PEER])

        app.router.add_post(GENERATE, generate)

    def _join_fleet(self) -> None:
        """Neighbours of one fleet give each other what it brings them."""
        around = self._neighbours

        def peers() -> list[MeshPeer]:
            return [MeshPeer(one.id, around.session(one.id)) for one in around.candidates()]

        chunks = self._upkeep.join(self._settings.fleet, around.id, peers)
        if chunks is not None:
            around.add(lambda app: add_chunks(app, chunks, lambda request: request[PEER]), "chunk")

    async def _report(self, told: Mapping[str, object]) -> None:
        """How an update ended, for whoever looks after the fleet; it waits for the network like all else."""
        if self.post.outbox is not None:
            key = f"rollout-{told['rollout']}-{told['revision']}-{told['outcome']}"
            await self.post.outbox.put("report", msgspec.json.encode(told), key=key)

    async def activate(self, model: str, profile: str, probation_s: float) -> Mapping[str, Any]:
        return await self._updater.activate_named(model, profile, probation_s)

    @property
    def _serving(self) -> Serving:
        return self._served.current

    @property
    def model(self) -> Model:
        return self._serving.model

    @property
    def source(self) -> TokenSource:
        assert self._served.entry is not None, "the node was not started"
        return self._served.entry

    def source_of(self, model: Model) -> TokenSource:
        return self._served.source_of(model)

    async def settled(self) -> None:
        await self._served.settled()

    @property
    def admission(self) -> Admission:
        return self._serving.admission

    @property
    def crossing(self) -> Crossing:
        """Who else may answer for the present model, and whom it answers for."""
        return self._serving.crossing

    @property
    def sampling(self) -> Sampling:
        return self._serving.sampling

    @property
    def prewarm(self) -> Prewarming:
        return self._serving.keeper

    @property
    def ready(self) -> bool:
        return self._serving.ready and not self._stopping

    @property
    def draining(self) -> bool:
        return self._stopping

    def load(self) -> Load:
        return self._serving.load_now(memory().available)

    def warmth(self) -> Warmth:
        return self._serving.keeper.warmth

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        """A section a part."""
        machine, allowance = memory(), self._allowance
        sections = {
            **self._serving.status(),
            "memory": {"resident_bytes": resident(), "free_bytes": machine.available, "most_bytes": machine.most},
            "tuning": {
                "variant": Path(self._serving.settings.model.variant).name or "as shipped",
                "auto": self._auto_tune.state if self._auto_tune else "off",
            },
            "cpu": {"threads": self.load().threads, "allowed": allowance.most, "reason": allowance.reason},
            **self.post.status(),
        }
        for part in self._parts:
            sections.update(part.status())
        return sections

    async def start(self) -> None:
        """Load the model, open the port, decode a first token; raises OperatorError."""
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        tls = _tls(self._settings)
        store = await self._open_store()
        await self._served.start()
        self._begin(self._steer())
        try:
            await self.post.start()
            await self._serving.keep()
            with self._served.closed():  # the first token has its slot from nobody, so none may be taken yet
                await self._listen(tls, store)
                await self._serving.decode_one_token()
            await self._app[STREAMS].resume_unfinished()
            for part in self._join():
                await part.start()
                self._parts.append(part)
            self.post.tell(self.status, lambda: "ready" if self.ready else "not ready")
        except BaseException:
            await self.stop(grace_s=0)
            raise
        self._tune_when_idle()
        if self._allowance.wanted:
            self._begin(watch(self._allowance, self._look, self._limit_threads, time.monotonic))
        self.started = True
        log.info("ready", extra={"url": self.url, "model": self.model.info.id, "engine": self.model.info.engine})

    async def stop(self, grace_s: float | None = None) -> None:
        """Drain within `grace_s` seconds (default: the setting), then close everything."""
        grace_s = self._settings.server.grace_s if grace_s is None else grace_s
        if self._auto_tune is not None:
            await self._auto_tune.stop()
        self._stopping = True
        if self._served.entry is not None:
            draining = asyncio.create_task(self._serving.drain(grace_s))
            await asyncio.sleep(0)  # the gate is closed now, which neighbours should know before the rest has ended
            self._neighbours.drain()
            await draining
        while self._parts:
            await self._parts.pop().stop()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        suspended = self._app[STREAMS].suspend() if self._runner is not None else []
        await self._served.stop(suspended)
        if self._runner is not None:
            await self._runner.cleanup()
        await self.post.stop()
        if self._database is not None:
            await self._database.close()

    async def serve_until_signal(self, on_ready: Callable[[Node], None]) -> None:
        """Start, run until SIGTERM or SIGINT, stop gracefully; a second signal stops at once."""
        loop = asyncio.get_running_loop()
        asked = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked.set)
        await self.start()
        on_ready(self)
        await asked.wait()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, os._exit, 130)
        await self.stop()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it until the node stops."""
        task = asyncio.create_task(work)
        task.add_done_callback(_background_ended)
        self._background.append(task)

    async def _steer(self) -> None:
        """Let admission and warm prefixes look at the machine, once a second."""
        while True:
            await asyncio.sleep(_STEER_S)
            self._serving.steer(await asyncio.to_thread(memory))

    def _tune_when_idle(self) -> None:
        """From here on requests pass a bell, so that the first one ends a tuning at once."""
        if self._tuning:
            self._auto_tune = AutoTune(self._tuning, self._settings.tune.idle_s, self._is_busy)
            self._served.refront()
            self._auto_tune.start()

    def _is_powered(self) -> bool:
        return not self._look()[1].on_battery

    def _is_busy(self) -> bool:
        return not self._serving.idle

    async def _open_store(self) -> StreamStore | None:
        if self._database is None:
            return None
        await self._database.open()
        streams = self._settings.streams
        return StreamStore(self._database, streams.max_bytes, streams.max_age_s)

    async def _listen(self, tls: ssl.SSLContext | None, store: StreamStore | None) -> None:
        server = self._settings.server
        self._app = create_app(self._settings, self, store, self._quotas, self.post.later, self.post.inbox)
        self._runner = web.AppRunner(
            self._app,
            handler_cancellation=True,
            access_log=None,
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
            keepalive_timeout=75,  # idle connections hold memory; aiohttp's default is an hour
            shutdown_timeout=1.0,  # streams were drained before; what is left now is cut
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, server.host, server.port, ssl_context=tls).start()
        except OSError as error:
            raise SettingsError(
                f"Cannot listen on {server.host}:{server.port}: {error.strerror or error}.",
                hint="Is another node running? Choose a port with --port, or 0 for a free one.",
            ) from error
        host, port = self._runner.addresses[0][:2]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if tls else 'http'}://{shown}:{port}"

    async def _limit_threads(self, most: int | None) -> None:
        """Fewer threads on battery and in the heat, as the settings say."""
        with contextlib.suppress(Unavailable):  # the engine has stopped
            await self._serving.limit_threads(most)


def _background_ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a part of the node ended", exc_info=error)


def _database_file(settings: Settings) -> Path | None:
    streams = settings.streams
    if streams.resumable == "never" or streams.durability == "off":
        return None
    if streams.database:
        return Path(streams.database).expanduser()
    if settings.server.port == 0:
        log.info("a port picked anew each time has no database; resumable generations live in memory only")
        return None
    return home() / f"node-{settings.server.port}.db"


def _neighbours(settings: Settings, portrait: Portrait) -> Neighbours:
    profile = profiles.in_use()
    return Neighbours(settings.mesh, identity.folder_in(home()), portrait, profile=profile.text if profile else "")


def _tls(settings: Settings) -> ssl.SSLContext | None:
    server = settings.server
    if not server.tls_certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(server.tls_certificate, server.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"Cannot use the TLS certificate {server.tls_certificate}: {error}.") from error
    return context
