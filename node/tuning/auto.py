"""A node that tunes itself once: in a process of its own, at the lowest priority, and only while nobody asks anything.

A request kills that process at once; nothing is lost but its time. What it found is used from the next start on, so
that no conversation changes its model half-way. It is not done on battery, not again after it failed in this process's
life, and not where `tuned.toml` already speaks of this model and machine.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence

from node.errors import NodeError
from node.generation import Request, Sink, TokenSource
from node.machine.supply import supply
from node.settings import Settings
from node.tuning import tuned
from node.tuning.idle import Patience
from node.tuning.lab import alone

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_MOST_WORDS = 300  # of what a failed run said

Clock = Callable[[], float]


def wanted(settings: Settings) -> bool:
    """Whether this node should ever tune itself: it is set so, it can, and it was not done yet."""
    if not (settings.tune.auto and settings.tune.use and settings.server.port):
        return False
    if settings.engine.kind != "llama" or settings.model.variant:
        return False
    found = tuned.read()
    try:
        return found is None or bool(tuned.difference(found, settings.model.name))
    except (NodeError, OSError):
        return False


class AutoTune:
    """`command` makes and keeps a tuning; `busy` says whether requests run or wait. All is called on the loop."""

    def __init__(
        self, command: Sequence[str], idle_s: float, busy: Callable[[], bool], clock: Clock = time.monotonic
    ) -> None:
        self._command, self._busy, self._clock = tuple(command), busy, clock
        self._patience = Patience(idle_s, clock())
        self._process: Process | None = None
        self._killed = False
        self._task: asyncio.Task[None] | None = None
        self.state = "waiting"

    def start(self) -> None:
        """Begin to wait for the first pause that is long enough."""
        self._task = asyncio.create_task(self._watch(), name="auto-tune")

    async def stop(self) -> None:
        """End all of it; the process is gone afterwards."""
        self.request()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.state == "running":
            await asyncio.to_thread(_clear)

    def request(self) -> None:
        """A request is here: what runs is killed, now."""
        self._patience.busy(self._clock())
        if self._process is not None and self._process.returncode is None:
            self._killed = True
            self._process.kill()

    async def _watch(self) -> None:
        while self.state in ("waiting", "interrupted"):
            await asyncio.sleep(min(_LOOK_S, self._patience.wait_s / 4))
            if self._busy() or supply().on_battery:
                self._patience.busy(self._clock())
            elif self._patience.due(self._clock()):
                await self._tune()

    async def _tune(self) -> None:
        """One run in a child, to its end or to the next request."""
        self.state, self._killed = "running", False
        log.info("the node is idle and tunes itself; a request stops that", extra={"idle_s": self._patience.wait_s})
        began = self._clock()
        self._process = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        if self._busy():  # a request that came while the process was made
            self.request()
        try:
            # Its input stays open as long as this process lives; it ends when that ends.
            out, err = await asyncio.gather(_read(self._process.stdout), _read(self._process.stderr))
            code = await self._process.wait()
        finally:
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()
        if self._killed:
            self._patience.interrupted(self._clock())
            await asyncio.to_thread(_clear)
            self.state = "interrupted"
            log.info("a request stopped the tuning", extra={"next_after_idle_s": self._patience.wait_s})
        elif code == 0:
            self.state = "done"
            log.info("tuned; used from the next start on", extra={**_gist(out), "seconds": self._clock() - began})
        else:
            self.state = "failed"
            said = err.decode(errors="replace").strip()[-_MOST_WORDS:]
            log.warning("tuning failed and is left until the next start", extra={"code": code, "said": said})


class Bell:
    """A TokenSource that tells of every request before it passes it on."""

    def __init__(self, source: TokenSource, ring: Callable[[], None]) -> None:
        self._source, self._ring = source, ring

    def submit(self, request: Request, sink: Sink) -> None:
        self._ring()
        self._source.submit(request, sink)

    def cancel(self, request_id: str) -> None:
        self._source.cancel(request_id)

    def hold(self, request_id: str, held: bool) -> None:
        self._source.hold(request_id, held)


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    assert stream is not None, "it is piped"
    return await stream.read()


def _gist(out: bytes) -> dict[str, object]:
    """The result in a few words, from the JSON that the run printed."""
    try:
        found = json.loads(out)
        return {"winner": found["winner"], "why": found["why"], "gains": found["gains"]}
    except (ValueError, KeyError, TypeError):
        return {"winner": "unknown"}


def _clear() -> None:
    """What the killed run left on the disk goes now, not at the next run."""
    try:
        with alone():
            pass
    except (NodeError, OSError) as error:
        log.warning("the files of a stopped tuning are still there", extra={"reason": str(error)})


def command(flags: Sequence[str]) -> tuple[str, ...]:
    """The child's command line; `flags` are those that the node itself was started with."""
    return (sys.executable, "-P", "-m", "node", "tune", "--apply", "--json", "--background", *flags)
