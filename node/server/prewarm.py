"""What the node has warm and why, and how to make it forget; numbers only, no text and no token of anybody's prompt.

Who calls with the key of a tenant sees that tenant's prefixes and templates. Only a key without one, the operator's,
may erase, since what is erased is everybody's.
"""

from __future__ import annotations

import logging

from aiohttp import web

from node.errors import Forbidden
from node.generation import Service
from node.server import replies
from node.server.boundary import json_response
from node.server.guard import Identity

_log = logging.getLogger(__name__)


def add_prewarm(app: web.Application, service: Service, identity: Identity) -> None:
    """Add GET and DELETE /v1/prewarm."""

    async def why(request: web.Request) -> web.Response:
        tenant = identity.asker(request).holder.tenant
        prefixes = [row for row in service.prewarm.why() if not tenant or row["tenant"] in (None, tenant)]
        return json_response(replies.encode({"prefixes": prefixes}))

    async def forget(request: web.Request) -> web.Response:
        if identity.asker(request).holder.tenant:
            raise Forbidden("This would erase every tenant's history, so only a key without a tenant may ask for it.")
        forgotten = await service.prewarm.forget()
        _log.info("prompt history erased", extra={"prefixes": forgotten})
        return json_response(replies.encode({"forgotten": forgotten}))

    app.router.add_get("/v1/prewarm", why)
    app.router.add_delete("/v1/prewarm", forget)
