"""The queue as a stage on a request's way: a TokenSource that holds requests until the source behind has a slot."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from node.admission.begun import Begun
from node.admission.governor import Governor
from node.admission.load import Memory
from node.admission.queue import AdmissionQueue
from node.admission.rules import Rules
from node.admission.sensors import Fate, Sensors
from node.errors import Expired, NodeError, Unavailable
from node.generation import LEVELS, Caller, Embedded, Event, Failed, Finished, Level, Request, Sink, Token, TokenSource

log = logging.getLogger(__name__)

WarmShare = Callable[[tuple[int, ...], Caller], float]  # what part of a prompt is warm on this node for this caller


def nothing_warm(prompt: tuple[int, ...], caller: Caller) -> float:
    """A node that keeps no prefixes."""
    return 0.0


class Gate:
    """Admits requests to `source`, `slots` at a time, as `rules` say. Belongs to the event loop's thread.

    `max_parked` more may have begun and be held by the source, without a slot. `sensors` know what requests feel; where
    there is a `governor`, that has consequences.
    """

    def __init__(
        self,
        source: TokenSource,
        slots: int,
        rules: Rules,
        max_parked: int = 0,
        warm_share: WarmShare = nothing_warm,
        governor: Governor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._queue = AdmissionQueue(slots, rules, max_parked)
        self._warm_share = warm_share
        self._governor = governor
        self._clock = clock
        self._held: dict[str, tuple[Request, Sink]] = {}
        self._begun: dict[str, Begun] = {}
        self._resumed: set[str] = set()  # have a slot again before the source has let go of them
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.sensors = Sensors()

    @property
    def running(self) -> int:
        return self._queue.running

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    @property
    def limit(self) -> int:
        """How many may run at a time now."""
        return self._queue.limit

    @property
    def closed(self) -> bool:
        return self._closed

    def wait_s(self, level: Level) -> float:
        """How long a newcomer of this level would wait for a slot now."""
        return self._queue.predicted_wait_s(level, self._clock())

    def gap_s(self) -> float | None:
        """The usual time between two tokens, in the last seconds; None while nothing streams."""
        return self.sensors.pace.percentile(0.5, self._clock())

    def submit(self, request: Request, sink: Sink) -> None:
        """Run or queue `request`; raises Overloaded when there is no room for it and Unavailable once closed."""
        if self._closed:
            raise Unavailable("This node is shutting down.", retry_after=5)
        now, queue = self._clock(), self._queue
        try:
            if self._governor is not None and not request.admitted:
                self._governor.check(request.level, queue.running >= queue.limit, now)
            queue.offer(request, now, self._warm_share(request.prompt, request.caller))
        except NodeError:
            self.sensors.refused(request.level)
            raise
        self.sensors.admitted(request.id, request.level, len(request.prompt) + len(request.continued), now)
        self._held[request.id] = (request, sink)
        self._idle.clear()
        self._act(newcomer=request.id)

    def cancel(self, request_id: str) -> None:
        """Drop a waiting request, or pass the word on for a running one."""
        if not self._queue.remove(request_id):
            self._cancel_begun(request_id)
            return
        self.sensors.ended(request_id, "cancelled")
        request, sink = self._held.pop(request_id)
        self._tell(sink, Finished("cancelled", len(request.prompt), 0))
        self._arm()
        self._note_idle()

    def hold(self, request_id: str, held: bool) -> None:
        """A reader lags, or has caught up; one that waits has nothing to hold back yet."""
        self._queue.hold(request_id, held)
        self._act()

    def _cancel_begun(self, request_id: str) -> None:
        begun = self._begun.get(request_id)
        if begun is not None and begun.stopped:
            self._tell(begun.sink, begun.cancelled)
            self._over(request_id, "cancelled")
            self._act()
            return
        if begun is not None:
            begun.away = False  # its end is for its reader now
        self._source.cancel(request_id)

    def steer(self, memory: Memory) -> None:
        """Let the governor look, and do what it says; once a second."""
        if self._governor is None:
            self._act()
            return
        step = self._governor.tick(self.sensors, memory, self._queue.running, self._clock())
        if step is not None:
            told = {"from": step.old, "to": step.new, "stress": round(step.stress, 2), "skipped": list(step.skipped)}
            log.warning("the ladder was stepped on" if step.new != "normal" else "the ladder was left", extra=told)
        self._queue.limit = self._governor.limit
        self._queue.limit_aged(self._governor.short_of_memory)
        self._act()

    def close(self) -> None:
        """Admit nothing new; what runs or waits goes on."""
        self._closed = True

    async def drained(self) -> None:
        """Wait until nothing runs or waits."""
        await self._idle.wait()

    def status(self) -> Mapping[str, Any]:
        """Who runs and who waits, and by level what they felt in the last minute."""
        queue, now = self._queue, self._clock()
        levels = {}
        for level in LEVELS:
            felt = self.sensors.levels[level]
            levels[level] = {
                "waiting": queue.waiting_at(level),
                "expected_wait_s": queue.predicted_wait_s(level, now),
                "wait_p95_s": felt.wait.percentile(0.95, now),
                "ttft_p50_s": felt.ttft.percentile(0.5, now),
                "ttft_p95_s": felt.ttft.percentile(0.95, now),
                "gap_p50_s": felt.gap.percentile(0.5, now),
                "gap_p95_s": felt.gap.percentile(0.95, now),
                **{fate: felt.fates[fate] for fate in ("admitted", "refused", "expired", "parked")},
            }
        return {
            **{"slots": queue.slots, "limit": queue.limit},
            **{"running": queue.running, "parked": queue.parked, "waiting": queue.waiting},
            **{"waiting_bytes": queue.waiting_bytes, "slot_held_s": queue.service.mean_s},
            "levels": levels,
        }

    def _act(self, newcomer: str | None = None) -> None:
        """Do what the queue decides, until nothing is left to do; what `newcomer` meets is raised."""
        refusal: NodeError | None = None
        while True:
            decision = self._queue.decide(self._clock())
            for request_id in decision.expire:
                self.sensors.ended(request_id, "expired")
                request, sink = self._held.pop(request_id)
                self._tell(sink, Failed(_expired(request)))
            for request_id in decision.park:
                self.sensors.parked(request_id)
                self._park(request_id)
            for request_id in decision.unseat:
                self.sensors.parked(request_id)
                self._unseat(request_id)
            for request_id in decision.resume:
                self.sensors.resumed(request_id)
                self._resume(request_id)
            refused = [(id, error) for id in decision.start if (error := self._start(id)) is not None]
            for request_id, error in refused:
                self._over(request_id, "failed")
                _, sink = self._held.pop(request_id)
                if request_id == newcomer:
                    refusal = error
                else:
                    self._tell(sink, Failed(error))
            if not refused:
                break
        self._arm()
        self._note_idle()
        if refusal is not None:
            raise refusal

    def _start(self, request_id: str) -> NodeError | None:
        """Hand it to the source; gives what that has against it, which its reader must hear."""
        request, sink = self._held[request_id]
        begun = self._begun[request_id] = Begun(request, sink)
        if (error := self._hand_over(begun, request)) is not None:
            return error
        self.sensors.started(request_id, self._clock())
        del self._held[request_id]
        return None

    def _hand_over(self, begun: Begun, request: Request) -> NodeError | None:
        def forward(event: Event) -> None:
            if not begun.heard(event):
                self._let_go(begun)
                return
            if isinstance(event, Token):
                self.sensors.token(request.id, self._clock())
            elif isinstance(event, Finished | Embedded | Failed):
                self._over(request.id, _fate(event))
                self._act()
            begun.sink(event)

        try:
            self._source.submit(request, forward)
        except NodeError as error:
            log.warning("a request could not start", extra={"request_id": request.id})
            return error
        return None

    def _park(self, request_id: str) -> None:
        if self._begun[request_id].away:
            self._resumed.discard(request_id)
        else:
            self._source.hold(request_id, True)

    def _unseat(self, request_id: str) -> None:
        """Its reader stalled, or an urgent one needs its slot and nobody can be parked: it leaves the source."""
        begun = self._begun[request_id]
        self._resumed.discard(request_id)
        if not begun.away:
            log.info("a generation was set aside", extra={"request_id": request_id})
            begun.away = True
            self._source.cancel(request_id)

    def _resume(self, request_id: str) -> None:
        begun = self._begun[request_id]
        if not begun.away:
            self._source.hold(request_id, False)
        elif not begun.stopped:
            self._resumed.add(request_id)
        elif (error := self._hand_over(begun, begun.again())) is not None:
            self._tell(begun.sink, Failed(error))
            self._over(request_id, "failed")

    def _let_go(self, begun: Begun) -> None:
        """The source tells nothing new; where it has stopped what shall go on again, it begins anew."""
        if begun.stopped and begun.request.id in self._resumed:
            self._resumed.discard(begun.request.id)
            self._resume(begun.request.id)

    def _over(self, request_id: str, fate: Fate) -> None:
        """One that had begun has ended; its slot is free."""
        self._begun.pop(request_id, None)
        self._resumed.discard(request_id)
        self._queue.release(request_id, self._clock())
        self.sensors.ended(request_id, fate)

    def _tell(self, sink: Sink, event: Event) -> None:
        """Not from inside this call: a sink may be the caller."""
        asyncio.get_running_loop().call_soon(sink, event)

    def _arm(self) -> None:
        """Come back when the next one expires."""
        if self._timer is not None:
            self._timer.cancel()
        at = self._queue.next_at
        delay = None if at is None else max(0.0, at - self._clock())
        self._timer = None if delay is None else asyncio.get_running_loop().call_later(delay, self._act)

    def _note_idle(self) -> None:
        if not (self._queue.running or self._queue.waiting or self._queue.parked):
            self._idle.set()


def _fate(end: Finished | Embedded | Failed) -> Fate:
    if isinstance(end, Failed):
        return "failed"
    return "cancelled" if isinstance(end, Finished) and end.reason == "cancelled" else "finished"


def _expired(request: Request) -> Expired:
    return Expired(f"No slot became free within this request's time to live of {request.ttl_s:g} s; it never ran.")
