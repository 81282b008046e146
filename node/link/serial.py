"""A line on a real tty, or anything that reads and writes like one.

Wired, frames are COBS between zero bytes; on radio they have a marker, a coded header and coded blocks (`radio`), and
each end asks the other for as much parity as its losses need. The device is read and written without blocking; no more
is given to it than it takes in a moment, so that what waits can still be put in a better order.
"""

from __future__ import annotations

import asyncio
import logging
import os
import termios
import tty
from collections.abc import Callable
from typing import Literal

from node.errors import LinkError, SettingsError
from node.link import cobs, radio
from node.link import frame as frames
from node.link.events import Event
from node.link.line import Line

log = logging.getLogger(__name__)

Mode = Literal["wired", "radio"]
MAX_FRAME = 2100
_READ = 4096
_RADIO_SHARE = 0.6  # of the configured rate: a radio needs air for others
_BITS = 10  # of a byte on a serial line


class SerialLine:
    """A line on a device. Belongs to the event loop's thread."""

    def __init__(self, device: str, baud: int, mode: Mode, *, client: bool, on_event: Callable[[Event], None]) -> None:
        self.device = device
        self.mode = mode
        share = _RADIO_SHARE if mode == "radio" else 1.0
        self.line = Line(client=client, rate=share * baud / _BITS)
        self.broken = 0  # frames that were damaged, or made no sense
        self.came = 0
        self._baud = baud
        self._on_event = on_event
        self._wires = cobs.Reader(MAX_FRAME)
        self._radio = radio.Reader()
        self._wanted = radio.ParityLevel()
        self._sequence = 0
        self._fd = -1
        self._unwritten = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._soon = False
        if mode == "radio":
            self.line.level = self._wanted.level

    async def open(self) -> None:
        """Open the device; raises SettingsError with the reason."""
        self._loop = asyncio.get_running_loop()
        try:
            self._fd = os.open(self.device, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
            if os.isatty(self._fd):
                self._configure()
            self._loop.add_reader(self._fd, self._readable)  # refuses what is no device, as a plain file
        except (OSError, termios.error) as error:
            self.close()
            raise SettingsError(
                f"Cannot use {self.device} as a serial line: {error}.",
                hint="Is it the right device, and may this user open it (group dialout)?",
            ) from error

    def _configure(self) -> None:
        speed = getattr(termios, f"B{self._baud}", None)
        if speed is None:
            raise SettingsError(f"A serial line of {self._baud} baud cannot be set.", hint="Try 9600 or 115200.")
        tty.setraw(self._fd)
        settings = termios.tcgetattr(self._fd)
        settings[2] |= termios.CLOCAL | termios.CREAD
        settings[4] = settings[5] = speed
        termios.tcsetattr(self._fd, termios.TCSANOW, settings)
        termios.tcflush(self._fd, termios.TCIOFLUSH)

    def wake(self) -> None:
        """The application has said something; it leaves at the end of this turn of the loop."""
        if not self._soon and self._fd >= 0:
            self._soon = True
            self._loop.call_soon(self._serve)

    def close(self) -> None:
        """Let go of the device; safe to call twice."""
        self.line.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _readable(self) -> None:
        try:
            data = os.read(self._fd, _READ)
        except BlockingIOError:
            return
        except OSError as error:
            log.error("the serial line is gone", extra={"device": self.device, "reason": str(error)})
            self.close()
            return
        if not data:
            log.error("the serial line has ended", extra={"device": self.device})
            self.close()
            return
        now = self._loop.time()
        for found in self._payloads(data):
            self._take(found, now)
        self._serve()

    def _payloads(self, data: bytes) -> list[bytes | LinkError]:
        if self.mode == "wired":
            return self._wires.feed(data)
        out: list[bytes | LinkError] = []
        for one in self._radio.feed(data):
            if isinstance(one, LinkError):
                self._wanted.lost()
                out.append(one)
            else:
                self._wanted.observe(one.corrected, one.size)
                out.append(one.payload)
            self.line.level = self._wanted.level
        return out

    def _take(self, found: bytes | LinkError, now: float) -> None:
        try:
            if isinstance(found, LinkError):
                raise found
            self.line.receive(frames.decode(found), now)
            self.came += 1
        except LinkError as error:
            self.broken += 1
            log.debug("a frame was dropped: %s", error.message)

    def _serve(self) -> None:
        self._soon = False
        while (event := self.line.next_event()) is not None:
            self._on_event(event)
        if self._fd < 0:
            return
        now = self._loop.time()
        if not self._unwritten:
            for frame in self.line.frames_to_send(now):
                self._unwritten += self._coded(frames.encode(frame))
            self._write()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        when = self.line.timer(now)
        if when < float("inf") and not self._unwritten:
            self._timer = self._loop.call_at(max(when, now + 0.001), self._serve)

    def _coded(self, frame: bytes) -> bytes:
        if self.mode == "wired":
            return cobs.encode(frame)
        level = 1 if self.line.asked_level is None else self.line.asked_level
        self._sequence = (self._sequence + 1) % 256
        return radio.encode(frame, level, self._sequence)

    def _write(self) -> None:
        if not self._unwritten:
            return
        try:
            written = os.write(self._fd, self._unwritten)
        except BlockingIOError:
            written = 0
        except OSError as error:
            log.error("the serial line is gone", extra={"device": self.device, "reason": str(error)})
            self.close()
            return
        del self._unwritten[:written]
        if self._unwritten:
            self._loop.add_writer(self._fd, self._writable)

    def _writable(self) -> None:
        self._loop.remove_writer(self._fd)
        self._write()
        if self._fd >= 0 and not self._unwritten:
            self._serve()
