"""The only place where the parts are joined, started and stopped.

Start: store, model file → engine in its thread → keeper of warm prefixes → gate → server; then one token is really
decoded, and generations that a dead process left unfinished go on; only after that the node is ready. Stop (SIGTERM,
SIGINT): refuse new requests, answer "not ready", let what runs finish within the grace period; what is resumable then
goes on in the next life, with its state.
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
from typing import Any, Literal

from aiohttp import web

from node.admission import policy
from node.admission.gate import Gate
from node.admission.reception import Reception
from node.engine.answers import Answers
from node.engine.base import Engine, open_engine
from node.engine.blocks import BlockStore
from node.engine.power import Allowance, Look, look_at_machine, watch
from node.engine.worker import Worker
from node.errors import EngineFailed, SettingsError, Unavailable
from node.fleet.model_file import model_file
from node.generation import Admission, Failed, Load, Model, Request, Sampling, TokenSource, Warmth
from node.machine.memory import memory, resident
from node.prewarm.fingerprint import fingerprint
from node.prewarm.history import History
from node.prewarm.keeper import Keeper
from node.prewarm.stock import Stock
from node.server.app import STREAMS, create_app
from node.settings import Settings, home
from node.store.db import Database
from node.store.prefixes import PrefixStore
from node.store.streams import StreamStore
from node.stream.session import Session
from node.tuning.auto import AutoTune, Bell, wanted

log = logging.getLogger(__name__)

# A thread that wants the GIL asks for it after this long (Python's default is 5 ms, half a decode step).
_SWITCH_INTERVAL_S = 0.0005
_MAX_HEADER_BYTES = 16 << 10
_STEER_S = 1.0
_SYNC: Mapping[str, Literal["NORMAL", "FULL"]] = {"process": "NORMAL", "power": "FULL"}


class Node:
    """A running node. `start` it, use `url`, `stop` it; it is also the server's `Service`.

    `tuning` is the command that tunes its model, for when it is idle; a node that is given none never tunes itself.
    """

    model: Model
    source: TokenSource
    admission: Admission
    prewarm: Keeper

    def __init__(self, settings: Settings, tuning: Sequence[str] = (), look: Look = look_at_machine) -> None:
        self._settings = settings
        policy.rules(settings.queue)  # what is absurd is told before a model is loaded
        self._quotas = policy.quotas(settings)
        self._tuning = tuning if tuning and wanted(settings) else ()
        self._auto_tune: AutoTune | None = None
        self._allowance, self._look = Allowance(settings.power), look
        prewarm = settings.prewarm
        states = BlockStore(prewarm.memory_bytes, shared=prewarm.share_between_tenants) if prewarm.enabled else None
        answers = _answers(settings)
        self._worker = Worker(lambda: open_engine(settings.engine, self._name, self._weights, states, answers))
        self._stock = Stock(states or BlockStore(0), self._worker.on_engine)
        self._keeper: Keeper | None = None
        self._reception: Reception | None = None
        self._background: list[asyncio.Task[None]] = []
        self._runner: web.AppRunner | None = None
        path = _database_file(settings)
        self._database = Database(path, _SYNC[settings.streams.durability]) if path else None
        self._store: StreamStore | None = None
        self._name, self._weights = model_file(settings)
        self._decoded = False
        self.url = ""

    @property
    def ready(self) -> bool:
        return self._decoded and not self.draining and not self._worker.broken

    @property
    def draining(self) -> bool:
        return self._reception is not None and self._reception.gate.closed

    def load(self) -> Load:
        assert self._reception is not None, "the node was not started"
        engine, gate = self._worker.load, self._reception.gate
        free = memory().available
        drafts = (engine.drafted, engine.accepted)
        return Load(gate.running, gate.waiting, engine.kv_used, engine.kv_total, free, engine.threads, *drafts)

    def warmth(self) -> Warmth:
        return self._keeper.warmth if self._keeper else Warmth()

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        """A section a part; whoever joins another part adds its section here."""
        assert self._reception is not None, "the node was not started"
        info, engine, machine = self.model.info, self._worker.load, memory()
        return {
            "model": {"id": info.id, "engine": info.engine, "context": info.context},
            **self._reception.status(),
            "kv": {"used": engine.kv_used, "total": engine.kv_total},
            "prewarm": self._keeper.status() if self._keeper else {},
            "memory": {"resident_bytes": resident(), "free_bytes": machine.available, "most_bytes": machine.most},
            "tuning": {
                "variant": Path(self._settings.model.variant).name or "as shipped",
                "auto": self._auto_tune.state if self._auto_tune else "off",
            },
            "cpu": {"threads": engine.threads, "allowed": self._allowance.most, "reason": self._allowance.reason},
            "drafts": {"proposed": engine.drafted, "accepted": engine.accepted},
        }

    async def start(self) -> None:
        """Load the model, open the port, decode a first token; raises OperatorError."""
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        tls = _tls(self._settings)
        await self._open_store()
        await self._worker.start()
        self.model = self._worker.model
        self.prewarm = self._keeper = keeper = Keeper(
            self._settings.prewarm, self._worker, self._history(), self._stock
        )
        self._reception = Reception(keeper, self.model.info, self._settings, self._quotas, keeper.warm_share)
        self.admission, self.source = self._reception, self._reception.source
        self._begin(self._steer(self._reception))
        try:
            await keeper.start(_states_folder(self._settings), self._fingerprint)
            await self._listen(tls)
            await self._decode_one_token()
            await self._app[STREAMS].resume_unfinished()
        except BaseException:
            await self.stop(grace_s=0)
            raise
        self._tune_when_idle()
        if self._allowance.wanted:
            self._begin(self._watch_power())
        log.info("ready", extra={"url": self.url, "model": self.model.info.id, "engine": self.model.info.engine})

    async def stop(self, grace_s: float | None = None) -> None:
        """Drain within `grace_s` seconds (default: the setting), then close everything."""
        grace_s = self._settings.server.grace_s if grace_s is None else grace_s
        if self._auto_tune is not None:
            await self._auto_tune.stop()
        if self._reception is not None:
            await self._drain(self._reception.gate, grace_s)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        suspended = self._app[STREAMS].suspend() if self._runner is not None else []
        if self._keeper is not None:
            await self._keeper.stop(suspended)
        await self._worker.stop()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._database is not None:
            await self._database.close()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it until the node stops."""
        task = asyncio.create_task(work)
        task.add_done_callback(_background_ended)
        self._background.append(task)

    async def _drain(self, gate: Gate, grace_s: float) -> None:
        gate.close()
        log.info("draining", extra={"running": gate.running, "waiting": gate.waiting})
        try:
            async with asyncio.timeout(grace_s):
                await gate.drained()
        except TimeoutError:
            log.warning("the grace period is over", extra={"running": gate.running})

    async def _steer(self, reception: Reception) -> None:
        """Let admission and warm prefixes look at the machine, once a second."""
        while True:
            await asyncio.sleep(_STEER_S)
            machine = await asyncio.to_thread(memory)
            most, free = machine.most, machine.available
            used = None if most is None or free is None else (most - free, most)
            reception.steer(self._worker.load.kv_total, used)
            if self._keeper is not None:
                self._keeper.relieve(most, free)

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

    def _tune_when_idle(self) -> None:
        """From here on requests pass a bell, so that the first one ends a tuning at once."""
        if self._tuning and self._reception is not None:
            gate = self._reception.gate
            idle_s = self._settings.tune.idle_s
            self._auto_tune = AutoTune(self._tuning, idle_s, lambda: bool(gate.running or gate.waiting))
            self.source = Bell(self.source, self._auto_tune.request)
            self._auto_tune.start()

    async def _open_store(self) -> None:
        if self._database is not None:
            await self._database.open()
            streams = self._settings.streams
            self._store = StreamStore(self._database, streams.max_bytes, streams.max_age_s)

    def _history(self) -> History:
        store = PrefixStore(self._database, self._name) if self._database else None
        return History(self._settings.prewarm, store)

    def _fingerprint(self, folder: Path) -> str:
        """Slow where a big model file is hashed for the first time; raises OSError."""
        return fingerprint(self._settings.engine, self._weights, folder)

    async def _listen(self, tls: ssl.SSLContext | None) -> None:
        server = self._settings.server
        self._app = create_app(self._settings, self, self._store, self._quotas)
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

    async def _watch_power(self) -> None:
        """Fewer threads on battery and in the heat, as the settings say."""

        async def tell(most: int | None) -> None:
            with contextlib.suppress(Unavailable):  # the engine has stopped
                if not await self._worker.on_engine(lambda engine: _limit(engine, most)):
                    log.warning("this engine's threads cannot be limited", extra={"engine": self.model.info.engine})

        await watch(self._allowance, self._look, tell, time.monotonic)

    async def _decode_one_token(self) -> None:
        prompt = tuple(self.model.encode("Hello"))
        request = Request("warm-up", prompt, 1, sampling=Sampling(temperature=0), ignore_eos=True)
        session = Session(request, self.source)
        self.source.submit(request, session.feed)
        end = await session.finished()
        if isinstance(end, Failed) or session.completion_tokens != 1:
            raise EngineFailed("The engine could not decode a first token.")
        self._decoded = True


def _background_ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a part of the node ended", exc_info=error)


def _limit(engine: Engine, most: int | None) -> bool:
    if engine.cores is not None:
        engine.cores.limit(most)
    return engine.cores is not None


def _answers(settings: Settings) -> Answers | None:
    """Past answers for guesses; they live in memory and in the engine's thread, and nothing of them is stored."""
    prewarm = settings.prewarm
    if settings.engine.drafts != "history" or not prewarm.enabled or not prewarm.answer_bytes:
        return None
    return Answers(prewarm.answer_bytes, prewarm.min_sessions, shared=prewarm.share_between_tenants)


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


def _states_folder(settings: Settings) -> Path | None:
    if settings.prewarm.folder:
        return Path(settings.prewarm.folder).expanduser()
    return home() / f"prewarm-{settings.server.port}" if settings.server.port else None


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
