"""Requests that may wait: 202 instead of a refusal, and GET and DELETE /v1/later/{id}.

`Prefer: respond-async` (RFC 7240) says that an answer may come later; `outbox.later` = "background" says it for all
requests of that level. When nobody can answer now (this node refuses or is draining, and so does whatever it may ask
besides) the request is stored, and only then 202 is sent, with `Location: /v1/later/ID`. An answer that has begun is
never deferred; nor is a request that is wrong, or one over its caller's own limits. `Idempotency-Key` finds the same
deferred request again. `Outpost-Callback: URL` has the answer sent there, where outbox.callbacks allows it.

GET gives 202 and `Retry-After` while it waits, then the response as it would have been, 410 once it expired or was
cancelled, 404 for an unknown id and another key's 403.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Final

from aiohttp import hdrs, web

from node.errors import InvalidRequest, NodeError, NotFound, Overloaded, RateLimited, Unavailable
from node.generation import Failed
from node.mesh.callback import allowed
from node.server.answer import Answerer
from node.server.boundary import json_response
from node.server.callers import user_of, wish_in
from node.server.guard import authorization_of, bearer_of
from node.server.replays import Key, key_of
from node.server.replies import encode
from node.server.sse import STREAM
from node.server.work import Work
from node.settings import Settings
from node.store.later import Deferred, LaterStore, Wanted

PATH: Final = "/v1/later"
PREFER: Final = "Prefer"
CALLBACK: Final = "Outpost-Callback"
IDEMPOTENCY: Final = "Idempotency-Key"
POLL_S: Final = 5

_ID = re.compile(r"later-[0-9a-f-]{36}")
_RESPOND_ASYNC = re.compile(r"(?:^|,)\s*respond-async\s*(?:[,;]|$)", re.IGNORECASE)


class Deferral:
    """Answers, or keeps for later. `woken` is called when something new waits, `cancelled` with an id that does not."""

    def __init__(self, settings: Settings, answerer: Answerer, store: LaterStore | None) -> None:
        self._settings = settings.outbox
        self._answerer = answerer
        self._store = store
        self.identity = answerer.identity
        self.woken: Callable[[], None] = lambda: None
        self.cancelled: Callable[[str], None] = lambda id: None

    def add_to(self, app: web.Application) -> None:
        """Add both routes."""
        app.router.add_get(f"{PATH}/{{id}}", self._fetch)
        app.router.add_delete(f"{PATH}/{{id}}", self._cancel)

    async def answer(self, request: web.Request, body: bytes, work: Work) -> web.StreamResponse:
        """Answer `work` now, or keep it; raises what the source raises for what may not wait."""
        wanted = self._wanted(request, body, work)
        key = _key(request, body)
        if self._store is not None and key and (known := await self._store.known(key.owner, key.content)):
            return await self._found(known, request)
        if wanted is None or self._store is None:
            return await self._answerer.answer(request, body, work)
        try:
            return await self._now(request, body, work)
        except (Overloaded, Unavailable) as error:
            if isinstance(error, RateLimited) or request.get(STREAM) is not None:
                raise
            kept = await self._store.keep(wanted)
            self.woken()
            return waiting(kept, error)

    async def _now(self, request: web.Request, body: bytes, work: Work) -> web.StreamResponse:
        """As the answerer does, but nothing is sent before the first entry: until then it can still be deferred."""
        running = await self._answerer.join(request, body, work)
        with self._answerer.reading(running):
            session = running.session
            await session.changed(0)
            if session.count == 0 and isinstance(session.end, Failed):
                raise session.end.error
            return await self._answerer.follow(request, running, running.work.stream)

    def _wanted(self, request: web.Request, body: bytes, work: Work) -> Wanted | None:
        """What to keep if it comes to that; None where it may not wait. Raises Forbidden for a foreign callback."""
        asked = any(_RESPOND_ASYNC.search(value) for value in request.headers.getall(PREFER, ()))
        callback = request.headers.get(CALLBACK, "")
        if callback:
            allowed(callback, self._settings.callbacks)
        if asked and self._store is None:
            return None
        if not asked and (self._settings.later != "background" or work.request.level != "background"):
            if callback:
                raise InvalidRequest(f"{CALLBACK} needs the header `{PREFER}: respond-async`.", param=CALLBACK)
            return None
        key, wish = _key(request, body), wish_in(request.headers)
        return Wanted(
            self.identity.owner(request),
            user_of(bearer_of(request)) if self.identity.owner(request) else "",
            request.path,
            wish.level or "",
            body,
            callback,
            key.owner if key else None,
            key.content if key else hashlib.sha256(body).digest(),
            work.request.ttl_s,
            wish.cloud,
        )

    async def _fetch(self, request: web.Request) -> web.Response:
        found = await self._find(request)
        return await self._found(found, request)

    async def _found(self, found: Deferred, request: web.Request) -> web.Response:
        if found.status == 0 or found.answer is None:
            return waiting(found)
        if self._store is not None and request.method == hdrs.METH_GET:
            await self._store.fetched(found.id)
        return json_response(found.answer, found.status, {"Outpost-Later": found.id})

    async def _cancel(self, request: web.Request) -> web.Response:
        found = await self._find(request)
        assert self._store is not None
        await self._store.cancel(found.id, found.owner)
        self.cancelled(found.id)
        return json_response(encode({"id": found.id, "object": "later", "status": "cancelled"}))

    async def _find(self, request: web.Request) -> Deferred:
        id = request.match_info["id"]
        if self._store is None or not _ID.fullmatch(id):
            raise NotFound("There is no deferred request of that id.", param="id")
        return await self._store.find(id, self.identity.owner(request))


def _key(request: web.Request, body: bytes) -> Key | None:
    sent = request.headers.get(IDEMPOTENCY)
    return key_of(sent, authorization_of(request), request.path, body) if sent else None


def waiting(kept: Deferred, reason: NodeError | None = None) -> web.Response:
    """202: it is safe, and here is where its answer will be."""
    told = {
        **{"id": kept.id, "object": "later", "status": "waiting"},
        **{"created": int(kept.created), "expires": int(kept.expires), "attempts": kept.attempts},
        **({"reason": reason.message} if reason else {}),
    }
    headers = {
        hdrs.LOCATION: f"{PATH}/{kept.id}",
        hdrs.RETRY_AFTER: str(max(POLL_S, min(reason.retry_after or 0, 120) if reason else 0)),
        "Preference-Applied": "respond-async",
    }
    return json_response(encode(told), 202, headers)
