"""A serial line of two joined ptys, with whatever noise a test makes."""

from __future__ import annotations

import asyncio
import os
import tty
from collections.abc import Callable

Noise = Callable[[bytes], bytes]


class Wire:
    """Two ptys joined; `noise` bends what passes."""

    def __init__(self, noise: Noise) -> None:
        self.noise = noise
        self.masters: list[int] = []
        self.slaves: list[int] = []  # kept open, so that a device can be opened twice
        self.devices: list[str] = []
        for _ in range(2):
            master, slave = os.openpty()
            tty.setraw(slave)
            os.set_blocking(master, False)
            self.masters.append(master)
            self.devices.append(os.ttyname(slave))
            self.slaves.append(slave)

    def open(self) -> None:
        loop = asyncio.get_running_loop()
        for here, there in (self.masters, self.masters[::-1]):
            loop.add_reader(here, self._carry, here, there)

    def _carry(self, here: int, there: int) -> None:
        if data := self.noise(os.read(here, 4096)):
            os.write(there, data)

    def close(self) -> None:
        loop = asyncio.get_running_loop()
        for fd in (*self.masters, *self.slaves):
            loop.remove_reader(fd)
            os.close(fd)
