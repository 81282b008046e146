"""POST /v1/link: a key for a link over UDP, handed out over HTTP; and all links of this node.

The body is {"versions": [2]}: which versions of the format (`link.packet`) the client speaks; one that says nothing
speaks version 1. The answer is {"version": 2, "link": NUMBER, "secret": BASE64, "port": UDP PORT, "idle_s": 60}, with
the version that is spoken; where the node speaks none of the client's, it refuses with 400 and names its own, and the
client stays where it is, on its WebSocket.

The secret protects every datagram, so it is given out over HTTPS or to this machine itself only. A link belongs to the
API key that asked for it, and dies after `idle_s` seconds without a datagram. What is spoken on it stands in
`link.packet`, `link.connection` and `linkanswers`. Where there are as many as there may be, a key that has fewer than
another gets the quietest of that other's: one key cannot keep all others out.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

import msgspec
from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from node.errors import Forbidden, SettingsError, Unavailable, Unsupported
from node.link import packet
from node.link.connection import IDLE_S, Connection
from node.link.crypto import SECRET_SIZE
from node.link.events import Event
from node.link.udp import UdpLinks
from node.server import replies
from node.server.boundary import json_response, read_body
from node.server.fields import decode
from node.server.guard import authorization_of
from node.server.linkanswers import Linked
from node.server.wsanswers import Client, Parts

PATH = "/v1/link"
_MOST_BYTES = 4096
_log = logging.getLogger(__name__)


class Wanted(msgspec.Struct, frozen=True):
    """What a client says of itself."""

    versions: Annotated[tuple[int, ...], msgspec.Meta(max_length=64)] = (1,)


class Links(Collector):
    """The route, and all links."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._settings = parts.settings.link
        self._udp = UdpLinks(self._happened, self._dead)
        self._links: dict[int, tuple[Connection, Linked]] = {}
        self._port = 0
        self._gone: Counter[str] = Counter()  # packets of the links that are closed

    def add_to(self, app: web.Application) -> None:
        """Add the route; with link.enabled, bind the socket when the application starts."""
        app.router.add_post(PATH, self._open)
        if self._settings.enabled:
            app.cleanup_ctx.append(self._listening)
            self._parts.meter.add(self)

    def collect(self) -> Iterator[Metric]:
        """How many links there are, and what their paths are like."""
        links = [connection for connection, _ in self._links.values()]
        yield GaugeMetricFamily("llm_links", "Links over UDP", len(links))
        counts = self._gone + Counter(rejected=self._udp.unknown, refused=self._udp.refused)
        for link in links:
            counts += _packets(link)
        family = CounterMetricFamily("llm_link_packets", "Packets of all links", labels=("fate",))
        for fate in ("sent", "lost", "rejected", "refused"):
            family.add_metric((fate,), counts[fate])
        yield family
        loss = max((link.path.loss for link in links if link.path.packets_sent), default=0.0)
        yield CounterMetricFamily("llm_link_failures", "Links given up for a fault of this node", self._udp.broken)
        yield GaugeMetricFamily("llm_link_loss_max", "Share of packets lost on the worst path", loss)

    @property
    def port(self) -> int:
        """The UDP port; 0 while there is none."""
        return self._port

    def status(self) -> dict[str, dict[str, object]]:
        """The section of `outpost status`; none where links are off."""
        if not self._settings.enabled:
            return {}
        links = [connection for connection, _ in self._links.values()]
        used = [link.path for link in links if link.path.measured]
        text, sent = sum(link.said() for link in links), sum(path.bytes_sent for path in used)
        told: dict[str, object] = {"open": len(links), "answering": len(used)}
        if used:
            told |= {
                "loss_worst": round(max(path.loss for path in used), 4),
                "losses_in_a_row_worst": round(max(path.mean_burst for path in used), 2),
                "rtt_worst_ms": round(1000 * max(path.srtt for path in used), 1),
                "full_paths": sum(path.tight for path in used),
                "bytes_a_byte_of_text": round(sent / text, 1) if text else None,
            }
        return {"links": told}

    async def _listening(self, app: web.Application) -> AsyncIterator[None]:
        server = self._parts.settings.server
        port = self._settings.port or server.port
        try:
            _, self._port = await self._udp.open(server.host, port)
        except OSError as error:
            raise SettingsError(
                f"Cannot listen on UDP port {port} of {server.host}: {error.strerror or error}.",
                hint="Choose another with link.port.",
            ) from error
        _log.info("links are open", extra={"udp_port": self._port})
        yield
        for _, linked in self._links.values():
            linked.end()
        self._udp.close()

    async def _open(self, request: web.Request) -> web.Response:
        if not self._settings.enabled:
            raise Unsupported("This node has no links.", hint="Start it with `outpost serve --link`.")
        if not (request.secure or _is_here(request.remote)):
            raise Forbidden("A link's secret is handed out over HTTPS only.", hint="Set server.tls_certificate.")
        wanted = decode(await read_body(request, _MOST_BYTES) or b"{}", Wanted)
        if packet.VERSION not in wanted.versions:
            raise Unsupported(f"This node's links speak version {packet.VERSION} only.", param="versions")
        identity = self._parts.answerer.identity
        client = Client(authorization_of(request), identity.owner(request), identity.asker(request))
        if self._parts.service.draining or not self._room_for(client.owner):
            raise Unavailable("This node has as many links as it may.", retry_after=5)
        secret, number = secrets.token_bytes(SECRET_SIZE), self._free_number()
        now = asyncio.get_running_loop().time()
        connection = Connection(secret, number, client=False, address=None, entropy=secrets.token_bytes, now=now)
        linked = Linked(connection, self._parts, client, lambda: self._udp.wake(connection))
        self._links[number] = connection, linked
        self._udp.add(connection)
        port = self._settings.public_port or self._port
        key = {"link": number, "secret": base64.b64encode(secret).decode(), "port": port}
        return json_response(replies.encode({"version": packet.VERSION, **key, "idle_s": IDLE_S}))

    def _room_for(self, owner: bytes) -> bool:
        """Whether there may be one more link; for who has fewer than others, one of theirs makes room."""
        if len(self._links) < self._settings.max_links:
            return True
        counts = Counter(linked.owner for _, linked in self._links.values())
        most, count = counts.most_common(1)[0]
        if counts[owner] + 1 >= count:
            return False
        theirs = [connection for connection, linked in self._links.values() if linked.owner == most]
        quietest = min(theirs, key=lambda connection: connection.last_heard)
        quietest.close()
        self._udp.remove(quietest)
        self._dead(quietest)
        return True

    def _free_number(self) -> int:
        while (number := secrets.randbits(32)) in self._links:
            pass
        return number

    def _happened(self, connection: Connection, event: Event) -> None:
        if connection.number in self._links:
            self._links[connection.number][1].happened(event)

    def _dead(self, connection: Connection) -> None:
        if found := self._links.pop(connection.number, None):
            found[1].end()
            self._gone += _packets(connection)
            _log.info("link closed", extra={"packets_sent": connection.path.packets_sent})


def _packets(link: Connection) -> Counter[str]:
    """A link's packets by their fate."""
    return Counter(sent=link.path.packets_sent, lost=link.path.packets_lost, rejected=link.rejected)


def _is_here(remote: str | None) -> bool:
    """Whether a request comes from this machine."""
    try:
        return ipaddress.ip_address(remote or "").is_loopback
    except ValueError:
        return False
