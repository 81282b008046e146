"""One loaded model and all that belongs to it: its engine's thread, its warm prefixes, the queue in front of them.

A node serves one of these at a time and can exchange it for another while it runs (`served`). Only one of them may
`keep` prefixes, because a history and a folder of states have one owner; the old one lets go of them first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from node.admission.gate import Gate
from node.admission.quota import Quotas
from node.admission.reception import Reception
from node.engine.answers import Answers
from node.engine.base import Engine, open_engine
from node.engine.blocks import BlockStore
from node.engine.lent import Lent
from node.engine.power import Look, look_at_machine
from node.engine.worker import Worker
from node.errors import EngineFailed
from node.fleet.model_file import model_file
from node.fleet.pinned import Pinned
from node.generation import Admission, Failed, Load, Request, Sampling, TokenSource
from node.machine.memory import Memory
from node.mesh.crossing import Crossing
from node.mesh.places import Neighbourhood, WarmShare, nothing_warm
from node.prewarm import templates
from node.prewarm.fingerprint import fingerprint, likeness
from node.prewarm.history import History
from node.prewarm.keeper import Keeper
from node.prewarm.stock import Stock
from node.settings import Settings, home
from node.store.db import Database
from node.store.prefixes import PrefixStore
from node.stream.session import Session

log = logging.getLogger(__name__)


class Serving:
    """`load` it, `keep`, use `source`; `let_go` and `stop` it. Raises ModelFileError where the model cannot be one.

    `pinned` is the verified file, which is then the one that is loaded, whatever happens to its name.
    """

    def __init__(
        self,
        settings: Settings,
        quotas: Quotas,
        database: Database | None,
        neighbourhood: Neighbourhood | None = None,
        warm_share: WarmShare = nothing_warm,
        pinned: Pinned | None = None,
        look: Look = look_at_machine,
    ) -> None:
        """`warm_share` says what part of a prompt is warm at a neighbour."""
        self.settings, self.pinned = settings, pinned
        self._neighbourhood, self._neighbours_warm_share, self._look = neighbourhood, warm_share, look
        self._quotas = quotas
        self._name, self._weights = model_file(settings)
        prewarm = settings.prewarm
        self._templates = templates.texts(prewarm.templates)
        states = BlockStore(prewarm.memory_bytes, shared=prewarm.share_between_tenants) if prewarm.enabled else None
        answers = _answers(settings)
        weights = pinned.path if pinned else self._weights
        self.worker = Worker(lambda: open_engine(settings.engine, self._name, weights, states, answers))
        store = PrefixStore(database, self._name) if database else None
        stock = Stock(states or BlockStore(0), self.worker.on_engine)
        self.keeper = Keeper(prewarm, self.worker, History(prewarm, store), stock)
        self.model: Lent
        self.reception: Reception
        self.crossing: Crossing
        self.admission: Admission
        self.decoded = False

    @property
    def source(self) -> TokenSource:
        """Where requests go in."""
        return self.reception.source

    @property
    def sampling(self) -> Sampling:
        """What counts where a request names nothing else."""
        return Sampling(**msgspec.structs.asdict(self.settings.sampling))

    @property
    def loaded(self) -> bool:
        """Whether there was a model once."""
        return hasattr(self, "model")

    @property
    def ready(self) -> bool:
        """Whether a token was really decoded, and the engine goes on."""
        return self.decoded and not self.worker.broken

    async def load(self) -> None:
        """Load the model and open the queue in front of it; raises OperatorError."""
        await self.worker.start()
        if self.pinned is not None:
            self.pinned.check()
        self.model = Lent(self.worker.model)
        keeper = self.keeper
        for text in self._templates:
            keeper.pin(templates.beginning(self.model, text))
        around, warm = self._neighbourhood, self._neighbours_warm_share
        self.crossing = Crossing(self.settings, self.model, await self._likeness(), around, warm, self._look)
        self.reception = Reception(
            keeper, self.model.info, self.settings, self._quotas, keeper.warm_share, self._routed
        )
        self.admission = self.crossing.admission(self.reception)
        await self.crossing.start()

    async def keep(self) -> None:
        """Take up the history of prompts and the folder of states; raises StoreFailed."""
        await self.keeper.start(_states_folder(self.settings), self._fingerprint)

    async def decode_one_token(self) -> None:
        """Show that it really runs; raises EngineFailed. Nobody asked it: it is in no queue and no history."""
        prompt = tuple(self.model.encode("Hello"))
        request = Request("warm-up", prompt, 1, sampling=Sampling(temperature=0), ignore_eos=True)
        session = Session(request, self.worker)
        self.worker.submit(request, session.feed)
        end = await session.finished()
        if isinstance(end, Failed) or session.completion_tokens != 1:
            raise EngineFailed("The engine could not decode a first token.")
        self.decoded = True

    async def drain(self, grace_s: float) -> bool:
        """Admit nothing new and let what is here finish, for so long at most; whether it did."""
        gate = self.reception.gate
        gate.close()
        log.info("draining", extra={"running": gate.running, "waiting": gate.waiting})
        try:
            async with asyncio.timeout(grace_s):
                await gate.drained()
                await self.crossing.drained()
        except TimeoutError:
            log.warning("the grace period is over", extra={"running": gate.running})
            return False
        return True

    async def let_go(self) -> None:
        """Give prefixes up to another one; what runs here goes on."""
        await self.keeper.let_go()

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits."""
        gate = self.reception.gate
        return not (gate.running or gate.waiting)

    async def stop(self, suspended: Iterable[Request] = ()) -> None:
        """Store what is warm, also of `suspended` requests that go on in the next life, and free the model."""
        self.decoded = False
        await self.keeper.stop(suspended)
        if hasattr(self, "crossing"):
            await self.crossing.stop()
        if self.loaded:
            await asyncio.to_thread(self.model.take_back)
        await self.worker.stop()

    def steer(self, machine: Memory) -> None:
        """Once a second: let admission and warm prefixes look at the machine."""
        most, free = machine.most, machine.available
        used = None if most is None or free is None else (most - free, most)
        self.reception.steer(self.worker.load.kv_total, used)
        self.keeper.relieve(most, free)

    async def limit_threads(self, most: int | None) -> None:
        """So many CPU threads may decode, None for all; raises Unavailable when the engine has stopped."""
        if not await self.worker.on_engine(lambda engine: _limit(engine, most)):
            log.warning("this engine's threads cannot be limited", extra={"engine": self.model.info.engine})

    def load_now(self, memory_free: int | None) -> Load:
        """How busy it is."""
        engine, gate = self.worker.load, self.reception.gate
        drafts = (engine.drafted, engine.accepted)
        return Load(gate.running, gate.waiting, engine.kv_used, engine.kv_total, memory_free, engine.threads, *drafts)

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        """A section for each of its parts."""
        info, engine = self.model.info, self.worker.load
        return {
            "model": {"id": info.id, "engine": info.engine, "context": info.context},
            **self.reception.status(),
            "kv": {"used": engine.kv_used, "total": engine.kv_total},
            "prewarm": self.keeper.status(),
            "drafts": {"proposed": engine.drafted, "accepted": engine.accepted},
            **self.crossing.status(),
        }

    def _routed(self, gate: Gate) -> TokenSource:
        """What stands before the queue, and knows of others who might answer."""

        def trouble() -> str:
            return "its engine is broken" if self.worker.broken else ""

        keeper = self.keeper
        return self.crossing.stage(
            gate, lambda: keeper.prefill_s, keeper.warm_share, lambda: self.reception.rung, trouble
        )

    async def _likeness(self) -> str:
        """What tells neighbours with the very same model; a big model file is hashed for seconds, once."""
        if self._neighbourhood is None:
            return ""
        try:
            return await asyncio.to_thread(likeness, self.settings.engine, self._weights, home())
        except OSError as error:
            log.warning("no neighbour can tell which model this is", extra={"reason": str(error)})
            return ""

    def _fingerprint(self, folder: Path) -> str:
        """Slow where a big model file is hashed for the first time; raises OSError."""
        return fingerprint(self.settings.engine, self._weights, folder)


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


def _states_folder(settings: Settings) -> Path | None:
    if settings.prewarm.folder:
        return Path(settings.prewarm.folder).expanduser()
    return home() / f"prewarm-{settings.server.port}" if settings.server.port else None
