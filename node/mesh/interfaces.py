"""This machine's network interfaces, and when they come and go.

On Linux the kernel tells (a netlink socket, which costs nothing while nothing happens); elsewhere one looks every few
seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import ipaddress
import logging
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import ifaddr

log = logging.getLogger(__name__)

_SETTLE_S = 0.3  # one change is many messages
_POLL_S = 3.0
_SIOCGIFFLAGS, _IFF_RUNNING = 0x8913, 0x40
_IPV6_TABLE = Path("/proc/thread-self/net/if_inet6")
_TENTATIVE, _DUPLICATE = 0x40, 0x08
_GROUPS = 0x1 | 0x10 | 0x100  # RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR


@dataclass(frozen=True, slots=True)
class Interface:
    """One with an address that is not this machine's own only. `up` is False where the kernel says that it is not."""

    name: str
    index: int
    ipv4: tuple[str, ...]
    ipv6: tuple[str, ...]
    up: bool = True


def present(names: Sequence[str] = ()) -> tuple[Interface, ...]:
    """The interfaces with these names (empty: all), without loopback, and their addresses that can be used."""
    found = []
    unusable = _unusable()
    for adapter in ifaddr.get_adapters():
        if adapter.index is None or (names and adapter.nice_name not in names):
            continue
        texts = [ip.ip if isinstance(ip.ip, str) else ip.ip[0] for ip in adapter.ips]
        addresses = [ipaddress.ip_address(text) for text in texts]
        usable = [one for one in addresses if not one.is_loopback and (one, adapter.index) not in unusable]
        ipv4 = tuple(sorted(str(address) for address in usable if address.version == 4))
        ipv6 = tuple(sorted(str(address) for address in usable if address.version == 6))
        if ipv4 or ipv6:
            found.append(Interface(adapter.nice_name, adapter.index, ipv4, ipv6, _is_up(adapter.nice_name)))
    return tuple(sorted(found, key=lambda interface: interface.index))


class Watch:
    """Calls `changed` when interfaces or their addresses have changed, and things have settled. `start`, `stop`."""

    def __init__(self, names: Sequence[str], changed: Callable[[tuple[Interface, ...]], None]) -> None:
        self._names = tuple(names)
        self._changed = changed
        self._stirred = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None
        self.known = present(self._names)

    def start(self) -> None:
        """Watch from now on."""
        self._socket = _netlink()
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket, self._drain)
        self.known = present(self._names)  # what changed until now was not told
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Watch no more."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            timeout = None if self._socket is not None else _POLL_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._stirred.wait()
            await asyncio.sleep(_SETTLE_S)
            self._stirred.clear()
            found = await asyncio.to_thread(present, self._names)
            if found != self.known:
                self.known = found
                self._changed(found)

    def _drain(self) -> None:
        """What the messages say does not matter: it is looked up."""
        assert self._socket is not None, "it is read only while it is open"
        try:
            while self._socket.recv(1 << 16):
                pass
        except BlockingIOError:
            pass
        except OSError as error:  # messages were lost, which is a message too
            log.debug("netlink: %s", error)
        self._stirred.set()


def _unusable() -> set[tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]]:
    """IPv6 addresses, with their interface, that the kernel still asks the network about, or that somebody else has.

    Nothing leaves from them; and when the second or two of asking are over, the kernel tells.
    """
    found: set[tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]] = set()
    with contextlib.suppress(OSError):  # another system, or one without IPv6
        for line in _IPV6_TABLE.read_text().splitlines():
            address, index, _, _, flags, *_ = line.split()
            if int(flags, 16) & (_TENTATIVE | _DUPLICATE):
                found.add((ipaddress.IPv6Address(int(address, 16)), int(index, 16)))
    return found


def _netlink() -> socket.socket | None:
    if not hasattr(socket, "AF_NETLINK"):
        return None
    watching = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    watching.setblocking(False)
    try:
        watching.bind((0, _GROUPS))
    except OSError as error:
        watching.close()
        log.warning("changes of the network are looked for, not told", extra={"reason": str(error)})
        return None
    return watching


def _is_up(name: str) -> bool:
    """Whether it is set up and has a carrier; True where that cannot be told."""
    if sys.platform != "linux":
        return True
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking, _SIOCGIFFLAGS, struct.pack("16s16x", name.encode()[:15]))
        except OSError:
            return False  # it has gone meanwhile
    (flags,) = struct.unpack_from("H", answer, 16)
    return bool(flags & _IFF_RUNNING)
