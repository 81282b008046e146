"""All of routing joined: this node, its neighbours and the cloud as places, the router before the gate, and serving."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from aiohttp import web

from node.engine.power import Look, look_at_machine
from node.generation import Admission, Caller, Model, TokenSource
from node.mesh.here import Here, Queue
from node.mesh.places import Neighbourhood, Nobody, Places, WarmShare, nothing_warm
from node.mesh.route import Policy
from node.mesh.router import RoutedAdmission, Router
from node.mesh.serving import Serving, Share
from node.mesh.upstream import Cloud, api_key
from node.settings import Settings

log = logging.getLogger(__name__)


class Gate(TokenSource, Queue, Protocol):
    """Where requests wait for this node's own slots."""

    @property
    def closed(self) -> bool: ...


class Crossing:
    """`stage` it before the gate, then `start`; `stop` it when the gate is drained. Raises SettingsError.

    `digest` is shared by nodes that make the same tokens. Without a `neighbourhood` the node is alone, but for a cloud.
    """

    def __init__(
        self,
        settings: Settings,
        model: Model,
        digest: str = "",
        neighbourhood: Neighbourhood | None = None,
        warm_share: WarmShare = nothing_warm,
        look: Look = look_at_machine,
    ) -> None:
        self._settings = settings
        self._model = model
        self.digest = digest
        self._neighbourhood = neighbourhood
        self._warm_share = warm_share
        self._cloud = Cloud(settings.cloud, model, api_key(settings.cloud)) if settings.cloud.url else None
        self._look = look
        self._watching: asyncio.Task[None] | None = None
        self._serving: Serving | None = None

    def stage(
        self,
        gate: Gate,
        prefill_s: Callable[[], float],
        warm_share: Callable[[tuple[int, ...], Caller], float],
        rung: Callable[[], int],
        trouble: Callable[[], str],
    ) -> TokenSource:
        """The router in front of `gate`; the rest is what this node knows of itself."""
        routes, cloud = self._settings.routes, self._settings.cloud
        self.here = Here(gate, prefill_s, warm_share, rung, trouble, self._look)
        neighbourhood = self._neighbourhood or Nobody()
        self.places = Places(
            gate, self.here.place, self._model, self.digest, neighbourhood, self._cloud, routes, self._warm_share
        )
        self.router = Router(
            gate,
            self.places,
            Policy(routes.neighbour_s, cloud.handicap_s, routes.power_s, cloud.metered),
            routes.hedge_share,
            lambda: gate.closed,
            alone=self._neighbourhood is None and self._cloud is None,
        )
        share = Share(self._model.info.slots, routes.share, _displaced(self._settings))
        self._serving = Serving(self._model, self.digest, lambda request: self.router, share, self.router.has)
        return self.router

    def admission(self, inner: Admission) -> Admission:
        """`inner`, which says in its headers who answers, too."""
        return RoutedAdmission(inner, self.router)

    def serve(self, app: web.Application, peer_of: Callable[[web.Request], str]) -> None:
        """Answer neighbours on their listener's application; `peer_of` says who sent a request."""
        assert self._serving is not None, "it was not staged"
        self._serving.add_to(app, peer_of)

    async def answer(self, request: web.Request, peer: str) -> web.StreamResponse:
        """What the neighbour `peer` asks for on a listener that outlives this model."""
        assert self._serving is not None, "it was not staged"
        return await self._serving.answer(request, peer)

    async def start(self) -> None:
        """Open what is needed to ask others; nothing is sent yet."""
        if self._neighbourhood is not None or self._cloud is not None:
            await self.here.see()
            self._watching = asyncio.create_task(self.here.watch())
        if self._cloud is not None:
            await self._cloud.open()
            cloud = self._settings.cloud
            log.info("a cloud may be asked", extra={"place": self._cloud.name, "policy": cloud.policy})
            if self._cloud.exposes_key:
                log.warning("the cloud's API key travels without TLS", extra={"place": self._cloud.name})

    async def drained(self) -> None:
        """Wait until nothing that was asked here is under way."""
        await self.router.drained()

    async def stop(self) -> None:
        """End what is under way elsewhere."""
        self.router.stop()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self.places.close()
        if self._cloud is not None:
            await self._cloud.close()

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        """A section for what was decided, and one for what was done for neighbours where there can be any."""
        assert self._serving is not None, "it was not staged"
        served = {"serving": self._serving.status()} if self._neighbourhood is not None else {}
        return {"routes": self.router.status(), **served}


def _displaced(settings: Settings) -> int:
    return settings.queue.displaces if settings.queue.policy == "levels" else 1
