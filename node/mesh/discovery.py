"""Finding neighbours on the local network: DNS-SD over multicast, as a hint and no more.

    _outpost._tcp.local.   the service
    <fabric>-<node id>     the instance; the host's name is the same, under local.
    txtvers=1  id=<16 hex>  fab=<16 hex>  api=1  cap=chat,…  pv=<8 hex>

Nothing else is announced: no load, no names of sites, people or models. Other fleets' instances are not even looked up.
How long an announcement is valid says nothing about who is alive: one that was killed stays listed for 20 minutes.
Handlers only take notes; lookups are bounded in number and time.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from zeroconf import Error as ZeroconfError
from zeroconf import IPVersion, NonUniqueNameException, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from node.mesh.identity import ID, Identity
from node.mesh.interfaces import Interface, Watch
from node.mesh.peers import Place

log = logging.getLogger(__name__)

SERVICE: Final = "_outpost._tcp.local."
_TXT_VERSION, _API = "1", "1"
_MAX_TXT = 400
_LOOKUP_MS = 3000
_MAX_LOOKUPS = 32
_MAX_ADDRESSES = 8
_CAPABILITIES = re.compile(r"[a-z0-9-]{1,16}(,[a-z0-9-]{1,16}){0,7}")
_CONFLICT_LOG_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0  # before it is tried again to be on the network

Hinted = Callable[[Place], None]


def announcement(
    identity: Identity, port: int, capabilities: Sequence[str], profile: str, found: Sequence[Interface]
) -> AsyncServiceInfo:
    """What this node says of itself to everybody; `profile` is the text of the profile in use."""
    name = f"{identity.fabric}-{identity.id}"
    told = {
        "txtvers": _TXT_VERSION,
        "id": identity.id,
        "fab": identity.fabric,
        "api": _API,
        "cap": ",".join(capabilities),
        "pv": hashlib.blake2b(profile.encode(), key=identity.fabric.encode(), digest_size=4).hexdigest(),
    }
    addresses = [address for interface in found for address in (*interface.ipv4, *interface.ipv6)]
    server = f"{name}.local."
    return AsyncServiceInfo(
        SERVICE, f"{name}.{SERVICE}", port, properties=told, server=server, parsed_addresses=addresses
    )


def understood(info: AsyncServiceInfo, fabric: str) -> Place | None:
    """Where a node of this fleet says that it is; None for everything else."""
    if len(info.text) > _MAX_TXT or not info.port:
        return None
    told = {key: value for key, value in info.decoded_properties.items() if value is not None}
    if (told.get("txtvers"), told.get("fab"), told.get("api")) != (_TXT_VERSION, fabric, _API):
        return None
    if not ID.fullmatch(told.get("id", "")) or not _CAPABILITIES.fullmatch(told.get("cap", "")):
        return None
    addresses = info.parsed_scoped_addresses(IPVersion.All)[:_MAX_ADDRESSES]
    return Place(tuple(addresses), info.port, told["id"]) if addresses else None


class Discovery:
    """`start` it once the port is open, `stop` it to say goodbye. Belongs to the event loop's thread."""

    def __init__(
        self,
        identity: Identity,
        port: int,
        capabilities: Sequence[str],
        profile: str,
        names: Sequence[str],
        hinted: Hinted,
        withdrawn: Callable[[str], None],
        stirred: Callable[[], None],
    ) -> None:
        """`names` are those of interfaces; empty takes all. `withdrawn` gets the id of whoever said goodbye."""
        self._identity, self._port = identity, port
        self._capabilities, self._profile = tuple(capabilities), profile
        self._hinted, self._withdrawn, self._stirred = hinted, withdrawn, stirred
        self._watch = Watch(names, self._network_changed)
        self._instance = re.compile(rf"{identity.fabric}-([0-9a-f]{{16}})(-\d{{1,3}})?\.{re.escape(SERVICE)}")
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._info: AsyncServiceInfo | None = None
        self._updating = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._lookups = 0
        self._conflict_told = -_CONFLICT_LOG_S
        self.foreign = 0

    async def start(self) -> None:
        """Announce this node and begin to look for others, now or as soon as there is a network."""
        self._watch.start()
        self._spawn(self._bring_up(self._watch.known))

    async def stop(self) -> None:
        """Say goodbye and close."""
        await self._watch.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        async with self._updating:
            if self._browser is not None:
                await self._browser.async_cancel()
            if self._zeroconf is not None:
                await self._zeroconf.async_close()

    def _network_changed(self, found: tuple[Interface, ...]) -> None:
        log.info("the network has changed", extra={"interfaces": [each.name for each in found if each.up]})
        self._spawn(self._bring_up(found))
        self._stirred()

    async def _bring_up(self, found: tuple[Interface, ...]) -> None:
        """Be on these interfaces; where that fails, try again after a pause, until there are others.

        An address is there before it can be used: while the kernel asks whether somebody else has it, for a second or
        two, nothing leaves from it, and when that is over nothing about it has changed.
        """
        pause_s = _FIRST_PAUSE_S
        while found is self._watch.known and not await self._brought_up(found):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _brought_up(self, found: tuple[Interface, ...]) -> bool:
        """Say on these interfaces that this node is there, and ask who else is; whether that could be done."""
        choice = _choice(found)
        if not choice:
            return True
        async with self._updating:
            try:
                if self._zeroconf is None:
                    self._zeroconf = AsyncZeroconf(interfaces=choice, ip_version=_version(choice))
                else:
                    await self._zeroconf.async_update_interfaces(choice, _version(choice))
                if self._browser is not None:
                    await self._browser.async_cancel()
                self._browser = AsyncServiceBrowser(self._zeroconf.zeroconf, SERVICE, handlers=[self._noticed])
                await self._announce(self._zeroconf, found)
            except (OSError, RuntimeError, ZeroconfError, TimeoutError) as error:
                reason = str(error) or type(error).__name__
                log.warning("neighbours cannot be found by multicast now", extra={"reason": reason})
                return False
        return True

    async def _announce(self, zeroconf: AsyncZeroconf, found: Sequence[Interface]) -> None:
        info = announcement(self._identity, self._port, self._capabilities, self._profile, found)
        if self._info is not None:
            info.name = self._info.name  # it may have been changed for a conflict
            self._info = info
            await (await zeroconf.async_update_service(info))
            return
        try:
            sent = await zeroconf.async_register_service(info)
        except NonUniqueNameException:
            self._tell_conflict()
            sent = await zeroconf.async_register_service(info, allow_name_change=True)
        self._info = info
        await sent

    def _noticed(self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        """An instance has come, changed or gone; anybody can say anything here."""
        match = self._instance.fullmatch(name.lower())
        if match is None:
            self.foreign += 1
            return
        if state_change is ServiceStateChange.Removed:
            if match[1] != self._identity.id:
                self._withdrawn(match[1])
            return
        info = AsyncServiceInfo(SERVICE, name)
        if info.load_from_cache(zeroconf):
            self._understand(info)
        elif self._lookups < _MAX_LOOKUPS:
            self._lookups += 1
            self._spawn(self._look_up(zeroconf, info))

    async def _look_up(self, zeroconf: Zeroconf, info: AsyncServiceInfo) -> None:
        try:
            if await info.async_request(zeroconf, _LOOKUP_MS):
                self._understand(info)
        finally:
            self._lookups -= 1

    def _understand(self, info: AsyncServiceInfo) -> None:
        place = understood(info, self._identity.fabric)
        if place is None:
            self.foreign += 1
        elif place.id != self._identity.id:
            self._hinted(place)
        elif self._info is not None and info.name.lower() != self._info.name.lower():
            self._tell_conflict()

    def _tell_conflict(self) -> None:
        now = time.monotonic()
        if now - self._conflict_told >= _CONFLICT_LOG_S:
            self._conflict_told = now
            log.warning("somebody else announces this node's id; was its data directory copied?")

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("discovery failed", exc_info=error)


def _choice(found: Sequence[Interface]) -> list[str | int]:
    """The interfaces as zeroconf wants them: addresses for IPv4, an index for IPv6."""
    up = [interface for interface in found if interface.up]
    return [*(address for interface in up for address in interface.ipv4), *(i.index for i in up if i.ipv6)]


def _version(choice: Sequence[str | int]) -> IPVersion:
    kinds = {type(each) for each in choice}
    if len(kinds) == 2:
        return IPVersion.All
    return IPVersion.V4Only if str in kinds else IPVersion.V6Only
