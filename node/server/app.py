"""The HTTP application: which routes there are, and what every request passes through.

Outermost first: `identify` gives the request its id, `count` counts what is for the model, `map_errors` turns every
error into something readable, `check_keys` lets in who may come in. The id and the CORS headers are put on by a signal
right before headers are sent, so that no response, streamed or refused, goes without.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from node import __version__, log
from node.admission.quota import Quotas
from node.generation import Service
from node.server.activate import add_activate
from node.server.answer import ARRIVED, Answerer
from node.server.boundary import map_errors
from node.server.callers import Callers, user_of
from node.server.catalog import Catalog
from node.server.chat import Completions
from node.server.deferral import Deferral
from node.server.embeddings import Embeddings
from node.server.gauges import Gauges
from node.server.guard import Identity, check_keys, cors_headers
from node.server.hub import HubRoutes
from node.server.laterruns import LaterRuns
from node.server.links import Links
from node.server.meter import CLIENT_GONE, Meter
from node.server.ops import add_health, add_metrics, add_status
from node.server.page import add_page
from node.server.prewarm import add_prewarm
from node.server.serials import Serials
from node.server.sse import STREAM
from node.server.streams import Streams
from node.server.websocket import WebSockets
from node.server.wsanswers import Parts
from node.settings import Settings
from node.store.inbox import Inbox
from node.store.later import LaterStore
from node.store.streams import StreamStore

LINKS: Final[web.AppKey[Links]] = web.AppKey("links", Links)
LATER: Final[web.AppKey[LaterRuns]] = web.AppKey("later", LaterRuns)
STREAMS: Final[web.AppKey[Streams]] = web.AppKey("streams", Streams)

_COUNTED = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings"})
_ID = web.RequestKey("id", str)
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def create_app(
    settings: Settings,
    service: Service,
    store: StreamStore | None = None,
    quotas: Quotas | None = None,
    later: LaterStore | None = None,
    inbox: Inbox | None = None,
) -> web.Application:
    """The application; run it with `handler_cancellation`, or clients that go away keep their slots.

    Without a store, resumable generations live in memory only. `quotas` say who holds which key. Without `later` no
    request waits, without an `inbox` this is no hub.
    """
    meter = Meter(service)
    quotas = quotas or Quotas()
    keys = frozenset(map(user_of, settings.server.api_keys)) | quotas.holders.keys()
    open_resources: set[web.AbstractResource] = set()
    app = web.Application(
        client_max_size=settings.server.max_body_bytes,
        middlewares=[
            identify,
            _count(meter),
            map_errors,
            check_keys(keys, open_resources),
        ],
    )
    add_page(app)
    add_health(app, service)
    open_resources.update(app.router.resources())  # what has been added so far asks for no key
    meter.add(Gauges(service))
    add_metrics(app, meter)
    add_status(app, service, __version__, lambda: app[LINKS].status())
    identity = Identity(bool(keys), Callers(secrets.token_bytes(32), quotas))
    answerer = Answerer(settings, service, meter, store, identity)
    deferral = Deferral(settings, answerer, later)
    completions = Completions(settings, service, deferral, lambda: secrets.randbits(32))
    completions.add_to(app)
    deferral.add_to(app)
    app[LATER] = runs = LaterRuns(settings, service, answerer, completions, later)
    runs.add_to(app)
    deferral.woken, deferral.cancelled = runs.wake, runs.cancelled
    HubRoutes(inbox, identity).add_to(app)
    app[STREAMS] = Streams(settings, service, answerer, completions, store)
    app[STREAMS].add_to(app)
    parts = Parts(settings, service, meter, answerer, completions, app[STREAMS])
    WebSockets(parts).add_to(app)
    app[LINKS] = Links(parts)
    app[LINKS].add_to(app)
    Serials(parts).add_to(app)
    Embeddings(settings, service, meter, identity).add_to(app)
    add_activate(app, service, identity)
    Catalog(settings, service).add_to(app)
    add_prewarm(app, service, identity)
    app.on_response_prepare.append(_mark(settings.server.allowed_origins))
    return app


@web.middleware
async def identify(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Take the client's request id if it is sane, or make one; every log line of the request carries it."""
    sent = request.headers.get("x-request-id", "")
    request[_ID] = sent if _SANE_ID.fullmatch(sent) else uuid.uuid4().hex
    request[ARRIVED] = asyncio.get_running_loop().time()
    token = log.request_id.set(request[_ID])
    try:
        return await handler(request)
    finally:
        log.request_id.reset(token)


def _count(meter: Meter) -> Middleware:
    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        """Count what is for the model by how it ended, also where the status line had to be written before."""
        if request.path not in _COUNTED or request.method != "POST":
            return await handler(request)
        status = CLIENT_GONE
        try:
            response = await handler(request)
            stream = request.get(STREAM)
            status = response.status if stream is None else stream.status
            return response
        finally:
            meter.request(status)

    return count


def _mark(allowed_origins: Sequence[str]) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    async def mark(request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(cors_headers(request, allowed_origins))
        response.headers["x-request-id"] = request.get(_ID, "")
        response.headers[hdrs.SERVER] = "outpost"

    return mark
