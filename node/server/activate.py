"""POST /v1/models/activate: an operator lets the node serve another model or profile, while it runs.

The answer comes at once; how far it has come stands in /v1/status. With API keys only a key without a tenant may ask;
without any, only this machine.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from aiohttp import web

from node.errors import Forbidden
from node.generation import Service
from node.server import replies
from node.server.boundary import json_response, read_body
from node.server.fields import decode
from node.server.guard import Identity, origin_allowed

_HERE = ("127.0.0.1", "::1")
_NAMES = re.compile(r"(127\.0\.0\.1|\[::1\]|localhost)(:\d+)?")
_PASSED_ON = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")
_MOST_BYTES = 4096


class ActivateBody(msgspec.Struct, frozen=True, kw_only=True):
    """Either name; `probation_s` is how long it must do well before it is kept."""

    model: str = ""
    profile: str = ""
    probation_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 60.0


def _is_from_here(request: web.Request) -> bool:
    """Asked on this machine under its own name. A page may let its name mean this address, but it is still that name;
    and what a proxy on this machine passes on says so."""
    named = _NAMES.fullmatch(request.host) is not None and origin_allowed(request, ())
    return request.remote in _HERE and named and not any(header in request.headers for header in _PASSED_ON)


def add_activate(app: web.Application, service: Service, identity: Identity) -> None:
    """Add the route."""

    async def activate(request: web.Request) -> web.Response:
        if identity.asks and identity.asker(request).holder.tenant:
            raise Forbidden("This changes what everybody gets, so only a key without a tenant may ask for it.")
        if not identity.asks and not _is_from_here(request):
            raise Forbidden("Without an API key only this machine may ask for that, and no page of another site.")
        form = decode(await read_body(request, _MOST_BYTES), ActivateBody)
        told = await service.activate(form.model, form.profile, form.probation_s)
        return json_response(replies.encode(told), 202)

    app.router.add_post("/v1/models/activate", activate)
