"""Deferred answers to whoever asked to be called: POST to an allowed address, signed, until it is confirmed.

The body is {"id": …, "status": …, "response": …}. `Outpost-Signature: t=SECONDS,v1=HEX` is the HMAC-SHA256 of
"SECONDS." and the body under the shared secret; `Idempotency-Key` is the request's id, since the same answer may come
again when a confirmation was lost. A callback is delivered when a 2xx repeats the id, in the header `Outpost-Later` or
anywhere in its body: a captive portal's page says 200, too. 410 ends the attempts, everything else repeats them.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import io
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import aiohttp

from node.errors import Forbidden, NodeError, SettingsError
from node.mesh.delivery import read_bounded
from node.store.backlog import pause_s
from node.store.later import CALLBACK
from node.store.outbox import Item, Outbox

log = logging.getLogger(__name__)

HEADER: Final = "Outpost-Later"
MOST_URL: Final = 2048
_LOOK_S = 15.0
_SILENCE_S = 15.0
_BATCH_BYTES = 1 << 20
_MOST_ANSWER = 64 << 10
_GONE = 410
_PORTS: Mapping[str, int] = {"http": 80, "https": 443}


class Callbacks:
    """Delivers answers; `address_of` gives where the answer with this id is to go, or "" when nobody waits any more."""

    def __init__(
        self,
        outbox: Outbox,
        secret: bytes,
        address_of: Callable[[str], Any],
        *,
        rng: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.time,
        least_pause_s: float = 1.0,
    ) -> None:
        self._outbox = outbox
        self._secret = secret
        self._address_of = address_of
        self._rng, self._clock = rng, clock
        self._least_pause_s = least_pause_s
        self._wake = asyncio.Event()
        self.delivered = self.failures = 0

    def hurry(self) -> None:
        """Something new waits."""
        self._wake.set()

    async def run(self) -> None:
        """Deliver for ever."""
        timeout = aiohttp.ClientTimeout(total=_SILENCE_S)
        async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:
            while True:
                self._wake.clear()
                try:
                    while items := await self._outbox.take(_BATCH_BYTES, stream=CALLBACK):
                        for item in items:
                            await self.deliver(session, item)
                except NodeError as error:
                    log.error("the outbox cannot be read", extra={"reason": error.message})
                await self._rest()

    async def deliver(self, session: aiohttp.ClientSession, item: Item) -> None:
        """One attempt for one answer."""
        address = await self._address_of(item.key)
        if not address:
            await self._outbox.delivered([item.id])
            return
        try:
            status, confirmed = await self._post(session, address, item)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            status, confirmed = 0, False
            log.debug("a callback failed", extra={"id": item.key, "reason": type(error).__name__})
        if confirmed or status == _GONE:
            log.info("a callback ended", extra={"id": item.key, "status": status})
            self.delivered += confirmed
            await self._outbox.delivered([item.id])
            return
        self.failures += 1
        pause = pause_s(item.attempts + 1, self._rng(), self._least_pause_s)
        log.info("a callback will be repeated", extra={"id": item.key, "status": status, "in_s": round(pause, 1)})
        await self._outbox.failed([item.id], pause)

    async def _post(self, session: aiohttp.ClientSession, address: str, item: Item) -> tuple[int, bool]:
        headers = {
            **{"Content-Type": "application/json", "Idempotency-Key": item.key, HEADER: item.key},
            "Outpost-Signature": sign(self._secret, int(self._clock()), item.body),
        }
        async with session.post(
            address, data=io.BytesIO(item.body), headers=headers, allow_redirects=False
        ) as response:
            body = await read_bounded(response, _MOST_ANSWER)
            echoed = response.headers.get(HEADER) == item.key or item.key.encode() in body
            return response.status, 200 <= response.status < 300 and echoed

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(_LOOK_S if self._least_pause_s >= 1 else self._least_pause_s):
                await self._wake.wait()
        except TimeoutError:
            pass


def sign(secret: bytes, seconds: int, body: bytes) -> str:
    """The value of `Outpost-Signature`."""
    return f"t={seconds},v1={hmac.new(secret, b'%d.' % seconds + body, hashlib.sha256).hexdigest()}"


def allowed(address: str, prefixes: Sequence[str]) -> str:
    """`address`, if it lies under one of the allowed ones; raises Forbidden."""
    if not prefixes:
        raise Forbidden("This node calls nobody back (outbox.callbacks).", param="Outpost-Callback")
    wanted = _split(address)
    if wanted is not None:
        for prefix in prefixes:
            known = _split(prefix)
            if known is not None and _origin(known) == _origin(wanted) and _under(wanted.path, known.path):
                return address
    raise Forbidden("This node does not call that address back (outbox.callbacks).", param="Outpost-Callback")


def is_prefix(text: str) -> bool:
    """Whether it can stand in outbox.callbacks."""
    return _split(text) is not None


def secret_of(file: str) -> bytes:
    """The shared secret; raises SettingsError."""
    try:
        secret = Path(file).expanduser().read_bytes().strip()
    except OSError as error:
        raise SettingsError(f"outbox.callback_secret_file: cannot read {file}: {error.strerror}.") from error
    if not 16 <= len(secret) <= 4096:
        raise SettingsError("outbox.callback_secret_file must hold a secret of 16 to 4096 bytes.")
    return secret


def _split(address: str) -> SplitResult | None:
    if len(address) > MOST_URL or not address.isascii() or not address.isprintable() or "\\" in address:
        return None
    try:
        parts = urlsplit(address)
        port_is_sane = parts.port is None or parts.port > 0
    except ValueError:
        return None
    plain = parts.scheme in _PORTS and bool(parts.hostname) and "@" not in parts.netloc and not parts.fragment
    return parts if plain and port_is_sane else None


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    return parts.scheme, parts.hostname or "", parts.port or _PORTS[parts.scheme]


def _under(path: str, prefix: str) -> bool:
    """Whether a path lies below another; no way up again, however it is written."""
    if any(step in path.lower() for step in ("/..", "/.%2e", "/%2e", "//", "%2f", "%5c")):
        return False
    folder = prefix.rstrip("/")
    return path in (prefix, folder) or path.startswith(f"{folder}/")
