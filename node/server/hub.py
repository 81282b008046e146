"""The hub's side of outboxes: POST /v1/hub/outbox takes what nodes deliver, GET /v1/hub/nodes shows who they are, and
GET /v1/hub/reports what their updates ended with.

A parcel is acknowledged after its items are on disk (an fsync), and names the ids of all of them, those that had come
before included, so that a node whose connection broke in between sends again and nothing is doubled. Whoever may call
this node's API may deliver; a node's id belongs to the key that it first came with.
"""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from node.errors import InvalidRequest, NotFound
from node.mesh import parcel
from node.mesh.post import receive, shown
from node.server.boundary import json_response, read_body
from node.server.callers import user_of
from node.server.guard import Identity, bearer_of
from node.server.replies import encode
from node.store.inbox import Inbox

_MOST_REPORTS = 500


class HubRoutes:
    """The routes; without an inbox they are not there."""

    def __init__(self, inbox: Inbox | None, identity: Identity) -> None:
        self._inbox = inbox
        self._identity = identity

    def add_to(self, app: web.Application) -> None:
        """Add them."""
        app.router.add_post(parcel.PATH, self._take)
        app.router.add_get("/v1/hub/nodes", self._nodes)
        app.router.add_get("/v1/hub/reports", self._reports)

    async def _take(self, request: web.Request) -> web.Response:
        inbox = self._there()
        raw = await read_body(request, parcel.MOST_PACKED)
        user = user_of(bearer_of(request)) if self._identity.owner(request) else ""
        return json_response(await receive(inbox, raw, user))

    async def _nodes(self, request: web.Request) -> web.Response:
        rows = await self._there().nodes()
        return json_response(encode({"object": "list", "data": [{"id": row["id"], **shown(row)} for row in rows]}))

    async def _reports(self, request: web.Request) -> web.Response:
        """What updates of nodes ended with, in the order in which it came; `after` is the last number that is known."""
        after = request.query.get("after", "0")
        if not (after.isascii() and after.isdigit() and len(after) < 19):
            raise InvalidRequest("`after` must be a number.", param="after")
        rows = await self._there().read("report", int(after), _MOST_REPORTS)
        data = [{"number": number, "node": row.node, "at": row.at, "report": _object(row.body)} for number, row in rows]
        return json_response(encode({"object": "list", "data": data, "has_more": len(rows) == _MOST_REPORTS}))

    def _there(self) -> Inbox:
        if self._inbox is None:
            raise NotFound("This node is no hub.", hint="Start it with `outpost serve --role hub`.")
        return self._inbox


def _object(body: bytes) -> Any:
    """A report as the node sent it; None for what is no JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
