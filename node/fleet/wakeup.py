"""A message that says "go look": the fleet's repository is asked then, and not only every `fleet.poll_s` seconds.

    broker ── retained message, QoS 1: a revision number ──> Wakeup ── wake() ──> Updater ── looks ──> repository

A message is a hint and nothing else. Whoever can send one can make a node look, at most once in `fleet.wake_least_s`
seconds however many come; what it finds there is signed. The number only tells a repeated message, as every new
connection brings one, from a new one. All that is lost without the broker is time: polling goes on beside it.

The session outlives the connection (3.1.1: clean session off, an identifier that stays), so a message that comes while
the node is away waits for it; after a connection was left for what came over it, the next one begins anew.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from node.errors import SettingsError
from node.fleet.broker import QOS, Broker, TooMuch, broker_of, cause_of, connection, leave, reason_of
from node.fleet.membership import WALL, Clock
from node.settings import Fleet

log = logging.getLogger(__name__)

_MOST_DIGITS = 20
_SPREAD_S = 1.0  # over which the nodes of a fleet come, when one message wakes all
_STEADY_S = 60.0  # a connection that held so long was a good one
_REFUSED = 0x80


class Wakeup:
    """`start` it, `stop` it; does nothing without `fleet.wake_url`. `pauses`: first and longest, in seconds."""

    def __init__(
        self,
        settings: Fleet,
        node: str,
        wake: Callable[[], None],
        clock: Clock = WALL,
        pauses: tuple[float, float] = (1.0, 300.0),
    ) -> None:
        self._settings, self._wake, self._clock, self._pauses = settings, wake, clock, pauses
        self._identifier = identifier(node)
        self._task: asyncio.Task[None] | None = None
        self._name = ""
        self._connected = self._anew = False
        self._reason = "not yet"
        self._revision = b""
        self._woken_at: float | None = None
        self._wakeups = self._ignored = self._failures = 0

    async def start(self) -> None:
        """Begin; a broker that is not there is no failure. Raises SettingsError."""
        if not self._settings.wake_url:
            return
        if not self._settings.url:
            raise SettingsError("fleet.wake_url is set, but no fleet.url to look at.")
        broker = await asyncio.to_thread(broker_of, self._settings)
        self._name = broker.name
        self._task = asyncio.create_task(self._run(broker), name="wakeup")
        self._task.add_done_callback(_ended)

    async def stop(self) -> None:
        """Leave the broker, which keeps what comes."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._connected = False

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        """Nothing where there is no broker."""
        if not self._name:
            return {}
        since = None if self._woken_at is None else round(self._clock.uptime() - self._woken_at, 1)
        told: dict[str, Any] = {"broker": self._name, "connected": self._connected, "last_s": since}
        told |= {"wakeups": self._wakeups, "ignored": self._ignored}
        return {"wakeup": told | ({} if self._connected else {"reason": self._reason})}

    async def _run(self, broker: Broker) -> None:
        """One connection after the other, with growing pauses after those that did not hold."""
        while True:
            began = self._clock.uptime()
            self._reason = await self._attempt(broker)
            if self._clock.uptime() - began >= _STEADY_S:
                self._failures = 0
            first, most = self._pauses
            pause = min(most, first * 2 ** min(self._failures, 30)) * (0.5 + 0.5 * self._clock.dice())
            told = {"broker": broker.name, "reason": self._reason, "again_in_s": round(pause, 1)}
            level = logging.DEBUG if self._failures and not self._connected else logging.WARNING
            log.log(level, "no wake-ups; the node looks at its usual times", extra=told)
            self._connected = False
            self._failures += 1
            await asyncio.sleep(pause)

    async def _attempt(self, broker: Broker) -> str:
        """Connect, and listen until that ends; gives the reason."""
        import aiomqtt

        client = connection(broker, self._identifier, clean=self._anew)
        self._anew = False
        try:
            async with client:
                granted: Any = await client.subscribe(broker.topic, QOS)
                if any(int(getattr(code, "value", code)) >= _REFUSED for code in granted):
                    return "the broker refuses the topic"
                self._connected = True
                log.info("wake-ups come by a broker", extra={"broker": broker.name})
                await self._listen(client)
            return "the connection ended"
        except (aiomqtt.MqttError, OSError, ValueError) as error:
            cause = cause_of(client, error)
            self._anew = isinstance(cause, TooMuch)
            return reason_of(cause)
        finally:
            leave(client)

    async def _listen(self, client: Any) -> None:
        told = False
        async for message in client.messages:
            revision = read(message.payload)
            if revision is None:
                self._ignored += 1
                if not told:
                    log.warning("a message of the broker is no revision, and ignored", extra={"broker": self._name})
                told = True
            elif revision != self._revision:
                await self._call(revision)

    async def _call(self, revision: bytes) -> None:
        """Wake the updater as soon as the bound allows; whatever comes meanwhile is one message more."""
        wait = self._clock.dice() * _SPREAD_S
        if self._woken_at is not None:
            wait = max(wait, self._woken_at + self._settings.wake_least_s - self._clock.uptime())
        await asyncio.sleep(wait)
        self._revision, self._woken_at = revision, self._clock.uptime()
        self._wakeups += 1
        log.info("woken to look at the fleet's repository", extra={"revision": int(revision)})
        self._wake()


def identifier(node: str) -> str:
    """What a broker knows a node by: 23 letters and digits, which is all that 3.1.1 promises to take."""
    return f"outpost{hashlib.sha256(node.encode()).hexdigest()[:16]}"


def read(payload: object) -> bytes | None:
    """A revision number, as it was written; None for anything else."""
    if isinstance(payload, bytes) and len(payload) <= _MOST_DIGITS and payload.isdigit():
        return payload
    return None


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("wake-ups have ended; the node looks at its usual times", exc_info=error)
