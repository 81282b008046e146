"""This node among its neighbours: the shell around the table. It answers them, finds them, asks them how they are.

Nothing is announced, no port is open and nobody is accepted unless this node is enrolled in a fleet. While it runs it
takes up a new certificate from its folder by itself, and a newer list of denied nodes from there or from any neighbour.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import msgspec

from node.errors import EnrolmentError, Unavailable
from node.generation import Request
from node.mesh import identity as enrolment
from node.mesh import sketch
from node.mesh.configured import place_of
from node.mesh.discovery import Discovery
from node.mesh.handshake import MeshContext, Refusals, renew, server_context
from node.mesh.identity import Identity, derived, public_key
from node.mesh.listener import Listener, Part
from node.mesh.peers import Change, Neighbour, Place, Table
from node.mesh.probe import Answer, Prober, Silent
from node.mesh.sight import Sight, write
from node.mesh.wire import tenant_there
from node.settings import Mesh

log = logging.getLogger(__name__)

_TEND_S = 10.0
_WARN_S = 7 * 86_400.0


class Drawn(Protocol):
    """What knows this node: `draw` says how it is, with the fleet's key for sketches; `watch` keeps looking."""

    def draw(self, key: bytes) -> Sight: ...

    async def watch(self) -> None: ...


class Seen(Protocol):
    """A neighbour as others may know it."""

    @property
    def sight(self) -> Sight: ...


class Neighbours:
    """A Neighbourhood. `start` it when the node can answer, `stop` it before the node cannot any more."""

    def __init__(self, settings: Mesh, folder: Path, portrait: Drawn, *, profile: str = "") -> None:
        """`folder` holds the enrolment; `profile` is the text of the profile in use. Raises SettingsError."""
        self._settings, self._folder, self._portrait, self._profile = settings, folder, portrait, profile
        self._configured = [place_of(text) for text in settings.peers]
        self._parts: list[Part] = []
        self._capabilities: list[str] = ["chat"]
        self._trouble = ""
        self._identity = self._enrolment()
        self._key = b""
        self._stamp: tuple[int, ...] = ()
        self._refusals = Refusals()
        self._table = Table("", random.random)
        self._context: MeshContext | None = None
        self._listener: Listener | None = None
        self._prober: Prober | None = None
        self._discovery: Discovery | None = None
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._fetching = False
        self._latest: tuple[tuple[int, ...], sketch.Marks] | None = None
        self.port = 0

    @property
    def enrolled(self) -> bool:
        """Whether it is in a fleet."""
        return self._identity is not None

    @property
    def id(self) -> str:
        """This node's own id; "" for one that is alone."""
        return self._identity.id if self._identity else ""

    def add(self, part: Part, capability: str = "") -> None:
        """Routes for neighbours, before `start`; `capability` is the word that announces them."""
        self._parts.append(part)
        if capability:
            self._capabilities.append(capability)

    async def start(self) -> None:
        """Open the port and begin to look for others; does nothing for a node in no fleet. Raises OperatorError."""
        if (identity := self._identity) is None:
            return
        self._take(identity)
        self._stamp = self._stamped()
        self._table = Table(identity.id, random.random)
        self._context = server_context(identity, self._refusals)
        self._listener = Listener(self._context, self._told, self._denied, self._called)
        self.port = await self._listener.start(self._settings.port, self._parts)
        self._prober = Prober(identity, self.port, self._refusals)
        now = time.monotonic()
        for place in self._configured:
            self._table.hint(f"{place.addresses[0]}:{place.port}", place, "configured", now)
        if self._settings.discover:
            self._discovery = Discovery(
                identity,
                self.port,
                self._capabilities,
                self._profile,
                self._settings.interfaces,
                lambda place: self._hint(place.id, place, "announced"),
                self._withdrawn,
                self._stir,
            )
            await self._discovery.start()
        for work in (self._run(), self._tend(), self._portrait.watch()):
            self._spawn(work)
        log.info("neighbours are welcome", extra={"fabric": identity.fabric, "node": identity.id, "port": self.port})

    def _enrolment(self) -> Identity | None:
        """Who this node is; one whose enrolment is broken goes on alone, and says so."""
        if not self._settings.enabled:
            return None
        try:
            return enrolment.load(self._folder)
        except EnrolmentError as error:
            self._trouble = error.message
            log.error("this node is alone: its enrolment cannot be used", extra={"reason": error.message})
            return None

    def drain(self) -> None:
        """Tell everybody who watches that this node takes nothing new."""
        if self._listener is not None:
            self._listener.hurry()

    async def stop(self) -> None:
        """Say goodbye and close everything."""
        if self._discovery is not None:
            await self._discovery.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            await self._listener.stop()
        if self._prober is not None:
            await self._prober.close()

    def candidates(self) -> list[Neighbour]:
        """See Neighbourhood."""
        now = time.monotonic()
        if self._table.use(now):
            self._wake.set()
        return self._table.candidates(now)

    def session(self, node_id: str) -> aiohttp.ClientSession:
        """See Neighbourhood."""
        key = self._table.key_of(node_id)
        session = self._prober.session(key) if self._prober and key is not None else None
        if session is None:
            raise Unavailable(f"{node_id} is no neighbour now.")
        return session

    def doubt(self, node_id: str, reason: str) -> None:
        """See Neighbourhood."""
        self._changed(node_id, self._table.doubt(node_id, time.monotonic(), reason), reason)
        self._wake.set()

    def warm_tokens(self, prompt: Sequence[int], tenant: str) -> Callable[[Sight], int]:
        """See Neighbourhood."""
        wanted = sketch.marks(self._key, prompt, tenant)
        return lambda sight: sketch.warm_tokens(sight.sketch, wanted)

    def warm_share(self, neighbour: Seen, request: Request) -> float:
        """What part of a request's prompt is warm at a neighbour; hashes the prompt once for all of them."""
        if not request.prompt or not neighbour.sight.sketch:
            return 0.0
        if self._latest is None or self._latest[0] is not request.prompt:
            self._latest = request.prompt, sketch.marks(self._key, request.prompt, tenant_there(request.caller.tenant))
        return sketch.warm_tokens(neighbour.sight.sketch, self._latest[1]) / len(request.prompt)

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        """Who is there, as the section `mesh`: plain values, seconds."""
        return {"mesh": self._section()}

    def _section(self) -> Mapping[str, Any]:
        identity = self._identity
        if identity is None:
            return {"state": "alone", **({"reason": self._trouble} if self._trouble else {})}
        known = self._table.known(time.monotonic())
        left_s = (identity.ends - datetime.datetime.now(datetime.UTC)).total_seconds()
        return {
            "state": "open" if left_s > 0 else "certificate over",
            **{"fabric": identity.fabric, "id": identity.id, "name": identity.name, "port": str(self.port)},
            "alive": sum(neighbour.state == "alive" for neighbour in known),
            "suspect": sum(neighbour.state == "suspect" for neighbour in known),
            "certificate_left_s": round(left_s),
            "denied_list": identity.denied.number,
            "refused": dict(self._refusals.counts),
            "neighbours": {neighbour.id: _row(neighbour) for neighbour in known},
            "unreached": {key: {"reason": reason} for key, reason in self._table.unreached()},
        }

    def _told(self, have: str) -> bytes:
        """What this node says of itself to one who has the sketch with this digest."""
        own = self._portrait.draw(self._key)
        assert self._identity is not None, "only an enrolled node listens"
        same = bool(own.sketch) and sketch.digest(own.sketch) == have
        return write(
            msgspec.structs.replace(
                own,
                id=self._identity.id,
                name=self._identity.name,
                denied=self._identity.denied.number,
                sketch=b"" if same else own.sketch,
                sketch_same=same,
            )
        )

    def _denied(self) -> bytes:
        return enrolment.denied_text(self._folder)

    def _called(self, node_id: str, address: str, port: int) -> None:
        """A neighbour asked us: it is there, at the port that it names."""
        known = address.removeprefix("::ffff:") if "." in address else address
        self._hint(node_id, Place((known,), port, node_id), "called")

    def _hint(self, key: str, place: Place, source: Any) -> None:
        if self._identity is not None and place.id not in self._identity.denied.ids:
            self._table.hint(key, place, source, time.monotonic())
            self._wake.set()

    def _withdrawn(self, node_id: str) -> None:
        self._table.withdraw(node_id, time.monotonic())
        self._wake.set()

    def _stir(self) -> None:
        self._table.stir(time.monotonic())
        self._wake.set()

    async def _run(self) -> None:
        """Ask whom the table wants asked, when it wants it."""
        while True:
            self._wake.clear()
            now = time.monotonic()
            for node_id in self._table.silent(now):
                log.info("a neighbour is gone", extra={"node": node_id})
            for key, place in self._table.due(now):
                self._spawn(self._probe(key, place))
            for key, place, wait_s in self._table.watches():
                self._spawn(self._watch(key, place, wait_s))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(max(0.02, self._table.next_time() - now), 3600.0)):
                    await self._wake.wait()

    async def _probe(self, key: str, place: Place) -> None:
        assert self._prober is not None, "it was made at the start"
        try:
            answer = await self._prober.ask(key, place)
        except Silent as silent:
            self._changed(key, self._table.failed(key, time.monotonic(), str(silent)), str(silent))
        else:
            change = self._table.heard(key, answer.id, answer.sight, time.monotonic(), answer.round_trip_s)
            self._changed(answer.id, change)
            self._look_at_denied(key, answer)
        self._wake.set()

    async def _watch(self, key: str, place: Place, wait_s: float) -> None:
        assert self._prober is not None, "it was made at the start"
        try:
            answer = await self._prober.ask(key, place, wait_s)
        except Silent as silent:
            change = self._table.unwatched(key, time.monotonic(), broken=str(silent))
            self._changed(key, change, str(silent))
        else:
            now = time.monotonic()
            self._changed(answer.id, self._table.heard(key, answer.id, answer.sight, now))
            self._table.unwatched(key, now)
            self._look_at_denied(key, answer)
        self._wake.set()

    def _changed(self, node_id: str, change: Change | None, reason: str = "") -> None:
        if change is not None:
            log.info(f"a neighbour is {change}", extra={"node": node_id, "reason": reason})

    def _look_at_denied(self, key: str, answer: Answer) -> None:
        """It has a newer list of denied nodes, or says so."""
        assert self._identity is not None, "nobody else asks"
        if answer.sight.denied > self._identity.denied.number and not self._fetching:
            self._fetching = True
            self._spawn(self._fetch_denied(key))

    async def _fetch_denied(self, key: str) -> None:
        assert self._prober is not None, "it was made at the start"
        try:
            text = await self._prober.fetch_denied(key)
            denied = await asyncio.to_thread(enrolment.deny, self._folder, text)
            log.info("a newer list of denied nodes", extra={"number": denied.number, "denied": len(denied.ids)})
            await self._reload()
        except (Silent, EnrolmentError, OSError) as error:
            log.warning("a neighbour's list of denied nodes was not taken", extra={"reason": str(error)})
        finally:
            self._fetching = False

    async def _tend(self) -> None:
        """Now and then: is there a new certificate, does the old one end soon?"""
        warned = -_WARN_S
        while True:
            await asyncio.sleep(_TEND_S)
            if self._stamped() != self._stamp:
                await self._reload()
            assert self._identity is not None, "a node that left its fleet goes on until it is stopped"
            left_s = (self._identity.ends - datetime.datetime.now(datetime.UTC)).total_seconds()
            if left_s < _WARN_S and time.monotonic() - warned > 86_400:
                warned = time.monotonic()
                log.warning("this node's certificate ends soon", extra={"left_hours": round(left_s / 3600, 1)})

    async def _reload(self) -> None:
        """Take up what lies in the folder now, if it can be used."""
        self._stamp = self._stamped()
        assert self._identity is not None, "only an enrolled node gets here"
        assert self._prober is not None, "it was made at the start"
        assert self._context is not None, "it was made at the start"
        try:
            found = await asyncio.to_thread(enrolment.load, self._folder)
            if found is None or (found.id, found.fabric) != (self._identity.id, self._identity.fabric):
                log.warning("this node's enrolment has changed; that counts from the next start on")
                return
            renew(self._context, found)
            self._prober.renew(found)
        except (EnrolmentError, OSError) as error:
            log.warning("the new enrolment cannot be used", extra={"reason": str(error)})
            return
        self._take(found)
        for node_id in found.denied.ids:
            if key := self._table.key_of(node_id):
                await self._prober.drop(key)
            self._table.forget(node_id)
        log.info("the enrolment was taken up anew", extra={"ends": found.ends.isoformat()})

    def _take(self, identity: Identity) -> None:
        self._identity = identity
        self._key = derived(public_key(identity.authority), b"sketch", 32)

    def _stamped(self) -> tuple[int, ...]:
        """Changes when a file of the enrolment does."""
        return tuple(path.stat().st_mtime_ns for path in sorted(self._folder.glob("*.crt"))) + tuple(
            path.stat().st_mtime_ns for path in self._folder.glob("denied.json")
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("what cares for neighbours failed", exc_info=error)


def _row(neighbour: Neighbour) -> dict[str, Any]:
    sight = neighbour.sight
    return {
        "name": sight.name,
        "state": "draining" if sight.draining and neighbour.state == "alive" else neighbour.state,
        "model": sight.model,
        "free_slots": sight.free_slots,
        "slots": sight.slots,
        "waiting": sight.waiting,
        "wait_s": sight.wait_s,
        "rung": sight.rung,
        "age_s": round(neighbour.age_s, 3),
        "round_trip_s": round(neighbour.round_trip_s, 4),
    }
