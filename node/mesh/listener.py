"""The port on which neighbours are answered: HTTP over mutual TLS, and nothing that needs no certificate.

Other rooms add their routes with a function that takes the application; their handlers find the id of the node that
asks, as its certificate says it, in `request[PEER]`. What a certificate was worth is looked at again for every request,
since a connection may be older than a denial.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from node.errors import EnrolmentError, Forbidden, InvalidRequest, NodeError, SettingsError, Unavailable
from node.mesh.handshake import MeshContext

log = logging.getLogger(__name__)

PEER: Final = web.RequestKey("peer", str)
PORT_HEADER: Final = "Outpost-Mesh-Port"
MAX_BODY_BYTES: Final = 8 << 20  # a prompt of a million tokens
MAX_WAIT_S: Final = 300.0
_MAX_HEADER_BYTES = 4 << 10
_HANDSHAKE_S = 5.0
_WATCHES_EACH = 4
_KEEPALIVE_S = 330.0

Part = Callable[[web.Application], None]
Told = Callable[[str], bytes]  # what this node says of itself to who has this digest of its sketch
Called = Callable[[str, str, int], None]  # a node's id, the address it called from, the port it says it listens on


class Listener:
    """`start` it once, `stop` it. Belongs to the event loop's thread."""

    def __init__(self, context: MeshContext, told: Told, denied: Callable[[], bytes], called: Called) -> None:
        self._context = context
        self._told, self._denied, self._called = told, denied, called
        self._watching: Counter[str] = Counter()
        self._hurry = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None

    async def start(self, port: int, parts: Iterable[Part] = ()) -> int:
        """Open the port (0: a free one) on every address, old and new; gives its number. Raises SettingsError."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[map_errors, self._authenticate])
        app.router.add_get("/mesh/status", self._status)
        app.router.add_get("/mesh/denied", self._list_denied)
        for add in parts:
            add(app)
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,
            access_log=None,
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
            keepalive_timeout=_KEEPALIVE_S,
            shutdown_timeout=1.0,
        )
        await self._runner.setup()
        assert self._runner.server is not None, "it was just set up"
        sock = _bound(port)
        self._server = await asyncio.get_running_loop().create_server(
            self._runner.server, sock=sock, ssl=self._context, ssl_handshake_timeout=_HANDSHAKE_S
        )
        return int(sock.getsockname()[1])

    def hurry(self) -> None:
        """Something has changed that everybody should know now: all watches that are held are answered."""
        self._hurry.set()
        self._hurry = asyncio.Event()

    async def stop(self) -> None:
        """Close the port and every connection."""
        self.hurry()
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        transport = request.transport
        certificate = transport.get_extra_info("peercert") if transport else None
        try:
            request[PEER] = self._context.named(certificate)
        except EnrolmentError as error:
            self._context.refuse(error.message)
            refusal = _failed(Forbidden(f"This node does not take you for a neighbour: {error.message}."))
            refusal.force_close()
            return refusal
        return await handler(request)

    async def _status(self, request: web.Request) -> web.Response:
        """What this node says of itself; with `wait` it says it after so many seconds, or when it must."""
        self._note_caller(request)
        wait_s = _seconds(request.query.get("wait", "0"))
        if wait_s:
            await self._hold(request[PEER], wait_s)
        body = self._told(request.query.get("have", "")[:64])
        return web.Response(body=body, content_type="application/msgpack", headers={"Server": "outpost"})

    async def _hold(self, peer: str, wait_s: float) -> None:
        if self._watching[peer] >= _WATCHES_EACH:
            raise Unavailable("You watch this node already.", retry_after=10)
        self._watching[peer] += 1
        try:
            async with asyncio.timeout(wait_s):
                await self._hurry.wait()
        except TimeoutError:
            pass  # nothing happened, which is what it is told now
        finally:
            self._watching[peer] -= 1
            if not self._watching[peer]:
                del self._watching[peer]

    async def _list_denied(self, request: web.Request) -> web.Response:
        """The list of denied nodes, as the authority signed it."""
        return web.Response(body=self._denied(), content_type="application/octet-stream")

    def _note_caller(self, request: web.Request) -> None:
        told = request.headers.get(PORT_HEADER, "")
        if request.remote and told.isdecimal() and len(told) <= 5 and 0 < int(told) < 1 << 16:
            self._called(request[PEER], request.remote, int(told))


@web.middleware
async def map_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error as something that a neighbour can read."""
    try:
        return await handler(request)
    except NodeError as error:
        return _failed(error)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return _failed(InvalidRequest(error.reason or "The request is wrong."), error.status)
    except ConnectionError:
        raise
    except Exception:  # the last resort: whatever broke, the neighbour gets an answer
        log.exception("a neighbour's request failed", extra={"path": request.path})
        return _failed(NodeError("The node failed to handle this request; its log says why."))


def _failed(error: NodeError, status: int = 0) -> web.Response:
    told = {"message": error.message, "type": error.kind, "code": error.code, "retryable": error.retryable}
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after else None
    body = msgspec.json.encode({"error": told})
    return web.Response(body=body, status=status or error.status, headers=headers, content_type="application/json")


def _seconds(text: str) -> float:
    try:
        wait_s = float(text)
    except ValueError as error:
        raise InvalidRequest("`wait` is a number of seconds.", param="wait") from error
    if not 0 <= wait_s <= MAX_WAIT_S:
        raise InvalidRequest(f"`wait` is between 0 and {MAX_WAIT_S:g} seconds.", param="wait")
    return wait_s


def _bound(port: int) -> socket.socket:
    """A listening socket for IPv4 and, where there is any, IPv6."""
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
        return socket.create_server(("", port), backlog=128)
    except OSError as error:
        raise SettingsError(
            f"Cannot listen for neighbours on port {port}: {error.strerror or error}.",
            hint="Choose another with mesh.port, or 0 for a free one.",
        ) from error
