"""The places that could answer, as they are known now: this node, its neighbours, the cloud; and what becomes of them.

Neighbours come with what they say of themselves; what they did is remembered here, so that one
that promises much and answers late is not believed for long.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import aiohttp

from node.admission.breaker import CONFIGURATION
from node.errors import Conflict, Expired, Filtered, InvalidRequest, NodeError, Overloaded, Unavailable, UpstreamFailed
from node.generation import Model, Request, TokenSource
from node.mesh.forward import Peer
from node.mesh.record import Record
from node.mesh.remote import Remote
from node.mesh.route import LOCAL, Place
from node.mesh.sight import Sight
from node.settings import Routes

_MOST_REMEMBERED = 1024  # neighbours that come and go
_UNKNOWN_CLOUD_S = 1.0
_CLOUD_TOKEN_S = 0.02
_FULL_S = 0.5  # waiting that a full neighbour is good for, where it says nothing of it

_ABOUT_ONE = (Conflict, InvalidRequest, Expired, Filtered)  # what says nothing of how a place does
_ANSWERS_ABOUT_ONE = frozenset({400, 413, 422})

log = logging.getLogger(__name__)

LookHere = Callable[[Request], Place]
WarmShare = Callable[["Neighbour", Request], float]


class Neighbour(Protocol):
    """One that has proved itself and may be asked."""

    @property
    def id(self) -> str: ...
    @property
    def sight(self) -> Sight: ...
    @property
    def round_trip_s(self) -> float: ...


class Neighbourhood(Protocol):
    """Who is there, and how to talk to them."""

    def candidates(self) -> Sequence[Neighbour]:
        """Who may be given something to do now, in no order."""

    def session(self, node_id: str) -> aiohttp.ClientSession:
        """A session whose requests reach that node, with paths like "/mesh/status"; raises Unavailable."""

    def doubt(self, node_id: str, reason: str) -> None:
        """That node failed a request: it is no candidate until a probe has found it well."""


class Cloud(Protocol):
    """The tier above, if there is one."""

    name: str

    def refuses(self, request: Request) -> str:
        """Why this request may not go there, or cannot; "" when it can."""

    def source(self) -> TokenSource: ...

    def probe(self, record: Record) -> None:
        """Find out in the background, at no cost, whether it works again."""


class Nobody:
    """A node that is alone."""

    def candidates(self) -> Sequence[Neighbour]:
        return ()

    def session(self, node_id: str) -> aiohttp.ClientSession:
        raise Unavailable("This node has no neighbours.")

    def doubt(self, node_id: str, reason: str) -> None:
        pass


def nothing_warm(neighbour: Neighbour, request: Request) -> float:
    """Nobody says which prefixes are warm."""
    return 0.0


class Places:
    """Gives places for a request, and sources for their names. Belongs to the event loop's thread."""

    def __init__(
        self,
        local: TokenSource,
        look_here: LookHere,
        model: Model,
        digest: str,
        neighbourhood: Neighbourhood,
        cloud: Cloud | None,
        settings: Routes,
        warm_share: WarmShare = nothing_warm,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.clock, self.chance = clock, chance
        self._local = local
        self._look_here = look_here
        self._model = model
        self._digest = digest
        self._neighbourhood = neighbourhood
        self._warm_share = warm_share
        self._cloud = cloud
        self._settings = settings
        self._peers: dict[str, Remote] = {}
        self._records: dict[str, Record] = {LOCAL: Record()}

    def all(self, request: Request, tried: Mapping[str, str] | None = None) -> list[Place]:
        """Every place, also those that cannot answer `request`, with the reason; `tried` are blocked, too."""
        found = [self._look_here(request)]
        if request.kind == "generate" and request.hops < self._settings.hops:
            found += [self._peer(neighbour, request) for neighbour in self._neighbourhood.candidates()]
        if self._cloud is not None:
            found.append(self._above(self._cloud, request))
        if not tried:
            return found
        return [replace(place, blocked=tried[place.name]) if place.name in tried else place for place in found]

    def source(self, name: str) -> TokenSource:
        """What runs a request there."""
        if name == LOCAL:
            return self._local
        kind, _, id = name.partition("/")
        if kind == "cloud" and self._cloud is not None:
            return self._cloud.source()
        if id not in self._peers:
            peer = Peer(id, self._neighbourhood.session, self._model, self._digest, self._settings.silence_s)
            self._peers[id] = Remote(peer)
        return self._peers[id]

    def knows_tokens(self, name: str) -> bool:
        """Whether it goes on from token ids; the cloud goes on from text."""
        return not name.startswith("cloud/")

    def record(self, name: str) -> Record:
        """What is remembered of a place."""
        if (known := self._records.pop(name, None)) is None:
            known = Record()
            if len(self._records) >= _MOST_REMEMBERED:
                idle = next((name for name, one in self._records.items() if not one.running and name != LOCAL), None)
                if idle is not None:
                    del self._records[idle]
        self._records[name] = known
        return known

    def failed(self, name: str, error: NodeError) -> None:
        """It refused, broke off or was silent."""
        record, now = self.record(name), self.clock()
        answered = error.answered if isinstance(error, UpstreamFailed) else None
        if name == LOCAL or isinstance(error, _ABOUT_ONE) or answered in _ANSWERS_ABOUT_ONE:
            return
        if isinstance(error, Overloaded):
            record.busy(now, error.retry_after or 1)
            return
        record.failed(now, self.chance(), answered, error.retry_after)
        if record.breaker.state == "open" and answered in CONFIGURATION:
            log.error("an upstream is set up wrongly", extra={"place": name, "reason": record.breaker.reason})
        if name.startswith("peer/") and isinstance(error, UpstreamFailed):
            self._neighbourhood.doubt(name.partition("/")[2], error.message)

    async def close(self) -> None:
        """Stop what is under way at neighbours."""
        for peer in self._peers.values():
            await peer.close()

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        """A row for each place that was ever asked, but this node."""
        now = self.clock()
        return {
            name: {
                "state": record.breaker.state,
                "running": record.running,
                "typical_ttft_s": record.typical_s(0.0),
                "late_s": record.excess_s(now),
                "blocked": record.blocked(now) or None,
            }
            for name, record in self._records.items()
            if name != LOCAL
        }

    def _peer(self, neighbour: Neighbour, request: Request) -> Place:
        sight, name, now = neighbour.sight, f"peer/{neighbour.id}", self.clock()
        known = self._records.get(name)
        blocked = self._unfit(sight, request) or (known.blocked(now) if known else "")
        if blocked:
            return Place(name, "peer", blocked=blocked)
        ours = known.running if known else 0
        wait_s = sight.wait_s if ours < max(1, sight.free_slots) else max(sight.wait_s, _FULL_S)
        return Place(
            name,
            "peer",
            wait_s=wait_s,
            prefill_s=sight.prefill_s,
            decode_s=sight.decode_s,
            trip_s=neighbour.round_trip_s,
            warm=self._warm_share(neighbour, request),
            excess_s=known.excess_s(now) if known else 0.0,
            rung=sight.rung,
            saves_power=sight.on_battery or sight.hot,
        )

    def _unfit(self, sight: Sight, request: Request) -> str:
        if sight.model_digest != self._digest or not self._digest:
            return "it has another model"
        if sight.draining:
            return "it is stopping"
        if len(request.prompt) + request.max_tokens > sight.context:
            return f"its context is {sight.context} tokens"
        return "" if sight.slots else "it answers for nobody"

    def _above(self, cloud: Cloud, request: Request) -> Place:
        record = self.record(cloud.name)
        now = self.clock()
        blocked = cloud.refuses(request) or record.blocked(now)
        if not blocked and record.breaker.state != "closed":
            cloud.probe(record)
            blocked = "it is looked at whether it works again"
        return Place(
            cloud.name,
            "cloud",
            trip_s=record.typical_s(_UNKNOWN_CLOUD_S),
            decode_s=_CLOUD_TOKEN_S,
            excess_s=record.excess_s(now),
            blocked=blocked,
        )
