"""A serial line as one more way in: whoever holds its other end asks as over a link, without a key."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator, Iterator

from aiohttp import web
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from node.link.events import Event
from node.link.serial import SerialLine
from node.server.linkanswers import Linked
from node.server.wsanswers import Client, Parts

_log = logging.getLogger(__name__)


class Serials(Collector):
    """The line that link.serial names, if it names one."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._linked: Linked | None = None
        self._serial: SerialLine | None = None

    def add_to(self, app: web.Application) -> None:
        """Open the line when the application starts."""
        if self._parts.settings.link.serial:
            app.cleanup_ctx.append(self._open)
            self._parts.meter.add(self)

    def collect(self) -> Iterator[Metric]:
        """Frames by what became of them."""
        family = CounterMetricFamily("llm_serial_frames", "Frames of the serial line", labels=("fate",))
        if self._serial is not None:
            family.add_metric(("came",), self._serial.came)
            family.add_metric(("broken",), self._serial.broken)
            family.add_metric(("resent",), self._serial.line.resent)
        yield family

    async def _open(self, app: web.Application) -> AsyncIterator[None]:
        link = self._parts.settings.link
        serial = SerialLine(link.serial, link.serial_baud, link.serial_mode, client=False, on_event=self._happened)
        await serial.open()
        owner = hashlib.sha256(b"serial\0" + link.serial.encode()).digest()
        client = Client("", owner, self._parts.answerer.identity.holder(link.serial))
        self._linked = Linked(serial.line, self._parts, client, serial.wake)
        self._serial = serial
        _log.info("the serial line is open", extra={"device": link.serial, "mode": link.serial_mode})
        yield
        self._linked.end()
        serial.close()

    def _happened(self, event: Event) -> None:
        if self._linked is not None:
            self._linked.happened(event)
