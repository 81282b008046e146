"""Who may call, and who is calling: API keys, and the origins that browsers may call from (CORS).

Routes are closed unless they are marked open, so that a route added later asks for the key by itself.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Collection, Sequence

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from node.errors import Unauthorized
from node.server.callers import Asker, Callers, Wish, user_of

KEY_PROTOCOL = "outpost-key."  # then the key in base64url, among the subprotocols that a browser offers

_ALLOWED_HEADERS = "authorization, content-type"
_HEADER_NAMES = re.compile(r"[A-Za-z0-9-]+(?: ?, ?[A-Za-z0-9-]+){0,63}")
_EXPOSED_HEADERS = (
    "x-request-id, retry-after, location, preference-applied, outpost-later, "
    "outpost-stream, outpost-priority, outpost-degraded, outpost-cached, "
    "outpost-served-by, "
    "x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    "x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)
_PREFLIGHT_S = "600"


def check_keys(accepted: frozenset[str], open_resources: Collection[web.AbstractResource]) -> Middleware:
    """A middleware that lets only holders of a key through to what is not open; no keys, no check.

    Keys are given and looked up as digests, so that time tells nothing about one that was close.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method == hdrs.METH_OPTIONS:
            return web.Response(status=204, headers=_preflight(request))
        resource = request.match_info.route.resource
        if accepted and resource not in open_resources and user_of(bearer_of(request)) not in accepted:
            raise Unauthorized("This node asks for an API key, and none or a wrong one was sent.", hint=_HINT)
        return await handler(request)

    return check


_HINT = "Send it as `Authorization: Bearer KEY`; `outpost` does with --api-key KEY."


class Identity:
    """Who is calling, from a request's key, headers and address."""

    def __init__(self, asks: bool, callers: Callers) -> None:
        """`asks` is whether the node asks for keys at all; else what is sent as one says nothing."""
        self.asks = asks
        self._callers = callers

    def owner(self, request: web.Request) -> bytes:
        """Whose generations these are: a digest of the API key; everybody's where the node asks for none."""
        return hashlib.sha256(self._key(request).encode()).digest() if self.asks else b""

    def asker(self, request: web.Request) -> Asker:
        """Who asks for new ones, and what their headers say; raises InvalidRequest for headers that make no sense."""
        return self._callers.asker(self._key(request), request.remote or "", request.headers)

    def returning(self, user: str, wish: Wish) -> Asker:
        """Who asked before, by the digest of the key that was sent then."""
        return self._callers.returning(user, wish)

    def holder(self, line: str) -> Asker:
        """Who asks over a line that has no keys: its other end, by the line's name."""
        return self._callers.asker("", line, {})

    def _key(self, request: web.Request) -> str:
        return bearer_of(request) if self.asks else ""


def cors_headers(request: web.Request, allowed: Sequence[str]) -> dict[str, str]:
    """The headers that let a browser read this response."""
    exposed: dict[str, str] = {hdrs.ACCESS_CONTROL_EXPOSE_HEADERS: _EXPOSED_HEADERS}
    if "*" in allowed:
        return {hdrs.ACCESS_CONTROL_ALLOW_ORIGIN: "*", **exposed}
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is not None and origin in allowed:
        return {hdrs.ACCESS_CONTROL_ALLOW_ORIGIN: origin, hdrs.VARY: hdrs.ORIGIN, **exposed}
    return {hdrs.VARY: hdrs.ORIGIN}


def authorization_of(request: web.Request) -> str:
    """What the client sent as `Authorization`; a browser's WebSocket, which cannot, names the key as a subprotocol."""
    if (sent := request.headers.get(hdrs.AUTHORIZATION)) is not None:
        return sent
    offered = [name.strip() for name in request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "").split(",")]
    for name in offered:
        if name.startswith(KEY_PROTOCOL):
            return f"Bearer {_unpacked(name.removeprefix(KEY_PROTOCOL))}"
    return ""


def bearer_of(request: web.Request) -> str:
    """The API key that the client sent; "" without one."""
    scheme, _, key = authorization_of(request).partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def origin_allowed(request: web.Request, allowed: Sequence[str]) -> bool:
    """Whether a page of this origin may open a WebSocket; CORS does not ask. The node's own pages always may."""
    origin = request.headers.get(hdrs.ORIGIN)
    return origin is None or "*" in allowed or origin in allowed or origin.partition("://")[2] == request.host


def _unpacked(encoded: str) -> str:
    try:
        return base64.b64decode(encoded + "=" * (-len(encoded) % 4), b"-_", validate=True).decode()
    except ValueError:
        return ""


def _preflight(request: web.Request) -> dict[str, str]:
    """Any header a client asks for is fine: they carry no rights of their own."""
    asked = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "").strip()
    more = f", {asked}" if _HEADER_NAMES.fullmatch(asked) else ""
    return {
        hdrs.ACCESS_CONTROL_ALLOW_METHODS: "GET, HEAD, POST, DELETE, OPTIONS",
        hdrs.ACCESS_CONTROL_ALLOW_HEADERS: _ALLOWED_HEADERS + more,
        hdrs.ACCESS_CONTROL_MAX_AGE: _PREFLIGHT_S,
    }
