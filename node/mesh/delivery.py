"""The outbox's way to its hub: oldest first within a priority, the urgent first, in batches, at a bounded rate.

An item leaves the outbox only when a 2xx has named its id. Everything else (no network, a captive portal's page, a 5xx,
a body that makes no sense, silence) leaves it where it is, and the next attempt comes after a growing, jittered pause,
or after what `Retry-After` says. "Too large" (413) halves the batch, down to a single item; a single one that is too
large is left aside for an hour, so that it does not hold up the others; where that one is small, the hub is taken for
broken. A refused key is said loudly once and tried
again every few minutes, because keys are mended by people.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp

from node.errors import NodeError, SettingsError, Unavailable
from node.mesh import parcel
from node.settings import Hub
from node.store.backlog import Bucket, Reconnect
from node.store.later import CALLBACK
from node.store.outbox import Item, Outbox

log = logging.getLogger(__name__)

CONNECT_S, SILENCE_S = 10.0, 30.0
IDLE_S: Final = 30.0  # how often to look when nobody hurries it
_PARKED_S = 3600.0
_REFUSED_S = 240.0
_LEAST_BATCH = 1024
_MOST_BATCH = 4 << 20


Mesh = Callable[[str], aiohttp.ClientSession]


class Delivery:
    """Delivers what waits for the hub. `state` says how that goes, in a word; `reason` why."""

    def __init__(
        self,
        settings: Hub,
        outbox: Outbox,
        node: str,
        *,
        rng: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
        reconnect: Reconnect | None = None,
        silence_s: float = SILENCE_S,
        mesh: Mesh | None = None,
    ) -> None:
        """`mesh` gives the way to a neighbour by its id."""
        self._settings = settings
        self._outbox = outbox
        self._node = node
        self._rng, self._clock = rng, clock
        self._reconnect = reconnect or Reconnect()
        self._silence_s = silence_s
        self._mesh = mesh
        self._bucket = Bucket(settings.bytes_per_s, max(settings.bytes_per_s, settings.batch_bytes))
        self._batch_bytes = settings.batch_bytes
        self._wake = asyncio.Event()
        self._reached: float | None = None
        self._session: aiohttp.ClientSession | None = None
        self.state, self.reason = "not tried yet", ""
        self.attempts = self.parked = 0

    def hurry(self) -> None:
        """Something new waits."""
        self._wake.set()

    def status(self) -> Mapping[str, Any]:
        """The section of `outpost status`."""
        now = self._clock()
        return {
            "state": self.state,
            **({"reason": self.reason} if self.reason else {}),
            "reached_s": None if self._reached is None else round(now - self._reached, 1),
            "retry_in_s": round(self._reconnect.wait_s(now), 1),
            "failures": self._reconnect.failures,
        }

    async def run(self) -> None:
        """Deliver for ever; the first attempt comes at a moment of its own, so that a fleet does not come at once."""
        async with self.connected():
            await asyncio.sleep(self._rng())
            while True:
                self._wake.clear()
                try:
                    more = await self.step()
                except NodeError as error:  # the disk's trouble, not the network's
                    log.error("the outbox cannot be read", extra={"reason": error.message})
                    more = False
                if not more:
                    await self._rest()

    @property
    def retry_in_s(self) -> float:
        """Seconds until the next attempt; 0 while the hub is reached."""
        return self._reconnect.wait_s(self._clock())

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """What `step` needs: connections that check the hub's certificate."""
        context = await asyncio.to_thread(tls, self._settings)
        connector = aiohttp.TCPConnector(ssl=context, limit=2)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
            self._session = session
            yield

    async def step(self) -> bool:
        """One attempt, if it is time for one; whether there may be more to do at once."""
        if self._reconnect.wait_s(self._clock()):
            return False
        items = await self._outbox.take(self._batch_bytes, without=(CALLBACK,))
        if not items:
            return False
        return await self._send(items[: parcel.MOST_ITEMS])

    async def _rest(self) -> None:
        """Until it is time to try again, or, while the hub can be reached, until somebody hurries."""
        wait = self._reconnect.wait_s(self._clock())
        if wait:
            await asyncio.sleep(wait)
            return
        try:
            async with asyncio.timeout(IDLE_S):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _send(self, items: Sequence[Item]) -> bool:
        ids = [item.id for item in items]
        body = await asyncio.to_thread(parcel.pack, self._node, items)
        if wait := self._bucket.take(len(body), self._clock()):
            await asyncio.sleep(wait)
        self.attempts += 1
        try:
            status, answer, retry_after = await self._post(body)
        except (aiohttp.ClientError, OSError, TimeoutError, Unavailable) as error:
            return await self._missed(ids, "unreachable", _why(error))
        if status == 413:
            return await self._too_large(items)
        if status in (401, 403, 404):
            return await self._missed(
                ids, "refused", f"it answers {status}: key, address or role are wrong", _REFUSED_S
            )
        if status >= 400:
            return await self._missed(ids, "failing", f"it answers {status}", retry_after)
        safe = parcel.accepted(answer, ids) if 200 <= status < 300 else None
        if not safe:
            told = "something else answers in its place" if safe is None else "it accepts nothing"
            return await self._missed(ids, "not a hub", f"{told} (status {status})")
        await self._outbox.delivered(safe)
        self._succeeded(len(safe))
        return True

    async def _post(self, body: bytes) -> tuple[int, bytes, float]:
        assert self._session is not None
        headers, session = {"Content-Type": parcel.TYPE, "Accept-Encoding": "identity"}, self._session
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=self._silence_s)
        if self._mesh is not None and self._settings.node:
            session, url = self._mesh(self._settings.node), parcel.MESH_PATH
        else:
            url = self._settings.url.rstrip("/").removesuffix("/v1") + parcel.PATH
            if key := await asyncio.to_thread(key_of, self._settings):
                headers["Authorization"] = f"Bearer {key}"
        async with session.post(
            url, data=io.BytesIO(body), headers=headers, allow_redirects=False, timeout=timeout
        ) as response:
            async with asyncio.timeout(self._silence_s):  # an answer that trickles in is none
                answer = await read_bounded(response, parcel.MOST_ANSWER)
            return response.status, answer, _seconds(response.headers.get("Retry-After"))

    async def _missed(self, ids: Sequence[str], state: str, reason: str, least_s: float = 0.0) -> bool:
        await self._outbox.failed(ids)
        pause = self._reconnect.failed(self._clock(), self._rng(), least_s)
        if state != self.state:
            log.warning("the hub was not told", extra={"state": state, "reason": reason, "retry_in_s": round(pause, 1)})
        self.state, self.reason = state, reason
        return False

    async def _too_large(self, items: Sequence[Item]) -> bool:
        """Half as much next time, down to one at a time; a hub that takes not even what is small is no good now."""
        ids = [item.id for item in items]
        if len(ids) > 1:
            self._batch_bytes = self._batch_bytes // 2 if self._batch_bytes > _LEAST_BATCH else 1
            return True
        if len(items[0].body) < _LEAST_BATCH:
            return await self._missed(ids, "failing", "it answers 413 to the smallest item")
        log.error("an item is too large for the hub and is left aside", extra={"id": ids[0]})
        self.parked += 1
        await self._outbox.failed(ids, _PARKED_S)
        return True

    def _succeeded(self, items: int) -> None:
        if self.state != "reached":
            log.info("the hub is reached", extra={"items": items})
        self.state, self.reason, self._reached = "reached", "", self._clock()
        self._reconnect.succeeded()
        self._batch_bytes = min(self._batch_bytes * 2, self._settings.batch_bytes)


async def read_bounded(response: aiohttp.ClientResponse, most: int) -> bytes:
    """A body of at most `most` bytes; raises ClientPayloadError beyond that."""
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_chunked(64 << 10):
        size += len(part)
        if size > most:
            raise aiohttp.ClientPayloadError(f"the answer has more than {most} bytes")
        parts.append(part)
    return b"".join(parts)


def key_of(settings: Hub) -> str:
    """The key for the hub; read anew each time, since keys are changed while nodes run. "" where it cannot be one."""
    if not settings.key_file:
        key, name = settings.key, "hub.key"
    else:
        name = "hub.key_file"
        try:
            key = Path(settings.key_file).expanduser().read_text(encoding="ascii").strip()[:1024]
        except (OSError, UnicodeDecodeError) as error:
            log.error("hub.key_file cannot be read", extra={"reason": str(error)})
            return ""
    if not (key.isascii() and key.isprintable()):  # it would end the delivery for good, or a header of its own choice
        log.error("the hub's key is no key", extra={"setting": name})
        return ""
    return key


def tls(settings: Hub) -> ssl.SSLContext:
    """What the hub's certificate is checked by: this machine's authorities, or the file that hub.ca_file names."""
    try:
        return ssl.create_default_context(cafile=settings.ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"hub.ca_file: cannot use {settings.ca_file}: {error}.") from error


def _why(error: Exception) -> str:
    """An error in a few words, without addresses that change at every attempt."""
    if isinstance(error, TimeoutError):
        return "it says nothing"
    if isinstance(error, NodeError):
        return error.message
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return "its certificate is not trusted"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__)[:200]


def _seconds(text: str | None) -> float:
    return min(float(text), 3600.0) if text and text.isascii() and text.isdecimal() and len(text) < 6 else 0.0
