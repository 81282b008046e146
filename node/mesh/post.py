"""All that waits for the network, joined: the outbox and who delivers it, deferred requests, and a hub's inbox.

Everything here is off unless it is asked for: without a database (`outbox.database`, or a fixed port) nothing is kept,
without `hub.url` or `hub.node` nothing is delivered, without `hub.telemetry_s` nothing is told, without
`outbox.callbacks` nobody is called, and only with `hub.role` "hub" anything is received.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from node import __version__
from node.errors import NodeError
from node.mesh import parcel, telemetry
from node.mesh.callback import Callbacks, secret_of
from node.mesh.delivery import Delivery, Mesh, tls
from node.mesh.listener import PEER
from node.settings import Settings, home
from node.store.db import Database
from node.store.inbox import INBOX, MESH_USER, Inbox, Received
from node.store.later import LaterStore
from node.store.outbox import OUTBOX, Outbox

log = logging.getLogger(__name__)

_SWEEP_S = 5.0
_MOST_SHOWN = 200

Status = Callable[[], Mapping[str, Mapping[str, Any]]]


class PostOffice:
    """A node's. `outbox`, `later` and `inbox` are None where they have no place; `mesh` leads to neighbours."""

    def __init__(self, settings: Settings, sweep_s: float = _SWEEP_S) -> None:
        self._settings = settings
        self._sweep_s = sweep_s
        self._tasks: list[asyncio.Task[None]] = []
        self._delivery: Delivery | None = None
        self._callbacks: Callbacks | None = None
        self._databases: list[Database] = []
        self.outbox: Outbox | None = None
        self.later: LaterStore | None = None
        self.inbox: Inbox | None = None
        self.mesh: Mesh | None = None
        if path := _file(settings, "outbox"):
            waiting = settings.outbox
            database = Database(path, "FULL", OUTBOX, "outbox.database")
            self._databases.append(database)
            self.outbox = Outbox(database, waiting.max_bytes, waiting.max_age_s)
            if waiting.later != "never":
                self.later = LaterStore(database, self.outbox, waiting.later_waiting)
        if settings.hub.role == "hub" and (path := _file(settings, "hub")):
            database = Database(path, "FULL", INBOX, "outbox.database")
            self._databases.append(database)
            self.inbox = Inbox(database, settings.hub.node_bytes, settings.outbox.max_age_s)

    async def start(self) -> None:
        """Open what the settings ask for, and begin to deliver; raises SettingsError and StoreFailed."""
        tls(self._settings.hub)
        secret = secret_of(file) if (file := self._settings.outbox.callback_secret_file) else b""
        for database in self._databases:
            await database.open()
        await self._sweep()
        self._begin(self._sweeping())
        if self.outbox is None:
            return
        if self._settings.hub.url or self._settings.hub.node:
            self._delivery = Delivery(self._settings.hub, self.outbox, await self.outbox.node_id(), mesh=self.mesh)
            self._begin(self._delivery.run())
        if self.later is not None and self._settings.outbox.callbacks:
            self._callbacks = Callbacks(self.outbox, secret, self.later.address_of)
            self._begin(self._callbacks.run())
        self.outbox.hurry = self.hurry

    def tell(self, status: Status, state: Callable[[], str]) -> None:
        """Put a record of the node's figures into the outbox now and then, if the settings say so."""
        if self.outbox is not None and self._settings.hub.telemetry_s:
            self._begin(self._telling(self.outbox, status, state))

    def hurry(self) -> None:
        """Something new waits."""
        for courier in (self._delivery, self._callbacks):
            if courier is not None:
                courier.hurry()

    async def stop(self) -> None:
        """End deliveries; what was not confirmed stays."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for database in self._databases:
            await database.close()

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        """The sections of `outpost status`: outbox, later, hub, and the fleet's nodes where this is a hub."""
        sections: dict[str, Mapping[str, Any]] = {}
        if self.outbox is not None:
            sections["outbox"] = self.outbox.depth
        if self.later is not None:
            sections["later"] = self.later.depth
        if self._delivery is not None:
            sections["hub"] = self._delivery.status()
        elif self._settings.hub.url or self._settings.hub.node:
            sections["hub"] = {"state": "no outbox", "reason": "port 0 has none; set outbox.database"}
        if self._callbacks is not None:
            told = {"delivered": self._callbacks.delivered, "failures": self._callbacks.failures}
            sections["callbacks"] = told
        if self.inbox is not None:
            seen = self.inbox.seen
            sections["fleet"] = {
                "nodes_known": len(seen),
                "nodes": {row["id"]: shown(row) for row in seen[:_MOST_SHOWN]},
            }
        return sections

    def serve_neighbours(self, app: web.Application) -> None:
        """As a hub, take what neighbours deliver: who they are is what their certificates say."""
        inbox = self.inbox
        if inbox is None:
            return

        async def take(request: web.Request) -> web.Response:
            raw = await request.read()
            peer = request[PEER]
            receipt = await receive(inbox, raw, MESH_USER + peer, peer)
            return web.Response(body=receipt, content_type="application/json")

        app.router.add_post(parcel.MESH_PATH, take)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(_ended)
        self._tasks.append(task)

    async def _sweeping(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_s)
            try:
                await self._sweep()
            except NodeError as error:
                log.error("the outbox cannot be swept", extra={"reason": error.message})

    async def _sweep(self) -> None:
        for part in (self.outbox, self.inbox):
            if part is not None:
                await part.sweep()
        if self.later is not None:
            await self.later.look()

    async def _telling(self, outbox: Outbox, status: Status, state: Callable[[], str]) -> None:
        began = asyncio.get_running_loop().time()
        while True:
            uptime_s = asyncio.get_running_loop().time() - began
            record = telemetry.record(status(), __version__, state(), uptime_s)
            try:
                await outbox.put(telemetry.STREAM, record, priority="telemetry", expires_s=telemetry.KEPT_S)
            except NodeError as error:
                log.warning("a record was not kept", extra={"reason": error.message})
            await asyncio.sleep(self._settings.hub.telemetry_s)


async def receive(inbox: Inbox, raw: bytes, user: str, node: str = "") -> bytes:
    """Keep what a node delivered, and say so; `node` is who it is, where that is known better than it says itself.

    Raises InvalidRequest, TooLarge, Forbidden, Overloaded.
    """
    sent = await asyncio.to_thread(parcel.unpack, raw)
    name = node or sent.node
    items = [Received(name, one.id, one.key, one.stream, one.priority, one.created, one.body) for one in sent.items]
    await inbox.take(name, user, items)
    return parcel.receipt([item.id for item in sent.items])


def shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """A node of the fleet as people see it: its age first, for what it said may be long ago."""
    told: dict[str, Any] = {"seen_s": round(row["seen_s"], 1), "received": row["received"], "again": row["again"]}
    with contextlib.suppress(msgspec.MsgspecError, TypeError):  # a node may send anything as its record
        record = msgspec.json.decode(row["record"] or b"{}", type=dict[str, Any])
        model, load = record.get("model"), record.get("load")
        told["state"] = _word(record.get("state"))
        told["version"] = _word(record.get("version"))
        told["model"] = _word(model.get("id")) if isinstance(model, dict) else None
        told["rung"] = _word(load.get("rung")) if isinstance(load, dict) else None
    return told


def _word(value: Any) -> str | None:
    return value[:64] if isinstance(value, str) and value.isprintable() else None


def _file(settings: Settings, name: str) -> Path | None:
    """Where it is kept; a hub's inbox lies beside the outbox."""
    if settings.outbox.database:
        outbox = Path(settings.outbox.database).expanduser()
        return outbox if name == "outbox" else outbox.with_name(f"{outbox.stem}-{name}{outbox.suffix}")
    return home() / f"{name}-{settings.server.port}.db" if settings.server.port else None


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a part of the outbox ended", exc_info=error)
