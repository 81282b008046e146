"""The router as a stage on a request's way: a TokenSource before the gate, so that what goes elsewhere takes no slot.

Every decision is a value with a reason; who answers stands in the header `Outpost-Served-By`, in the stream's last
chunk where it was not this node, in the metrics and in `outpost status`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from node.errors import Unavailable
from node.generation import Admission, Request, Sink, TokenSource
from node.mesh.failover import Relay
from node.mesh.places import Places
from node.mesh.record import Budget
from node.mesh.route import LATER, LOCAL, Decision, Policy, Task, decide

SERVED_BY: Final = "Outpost-Served-By"

_MOST_SESSIONS = 10_000
_PAUSES = 256

log = logging.getLogger(__name__)


class Router:
    """Gives each request to a place. `alone` answers without any of it where there is nobody else to ask."""

    def __init__(
        self,
        local: TokenSource,
        places: Places,
        policy: Policy,
        hedge_share: float,
        closed: Callable[[], bool],
        *,
        alone: bool = False,
    ) -> None:
        self.places = places
        self._local = local
        self._policy = policy
        self._budget = Budget(hedge_share)
        self._closed = closed
        self._alone = alone
        self._relays: dict[str, Relay] = {}
        self._last: OrderedDict[tuple[str, str, str], str] = OrderedDict()
        self._decisions: Counter[tuple[str, str]] = Counter()
        self._failovers: Counter[tuple[str, str]] = Counter()
        self._pauses: deque[float] = deque(maxlen=_PAUSES)
        self._stopped = False
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, request: Request, sink: Sink) -> None:
        """See TokenSource."""
        if self._closed():
            raise Unavailable("This node is shutting down.", retry_after=5)
        if self._alone:
            self._local.submit(request, sink)
            self._decisions[LOCAL, "alone"] += 1
            return
        self._budget.request()
        decision = self.decide(request, {})
        self._decisions[decision.place.partition("/")[0], decision.why] += 1
        relay = Relay(request, sink, self)
        self._relays[request.id] = relay
        self._idle.clear()
        relay.start(decision)
        if relay.places and relay.places[0] != LOCAL:
            told = {"id": request.id, "place": relay.places[0], "why": decision.why}
            log.info("a request goes elsewhere", extra={**told, "first_token_s": round(decision.first_token_s, 3)})

    def cancel(self, request_id: str) -> None:
        """See TokenSource."""
        if relay := self._relays.get(request_id):
            relay.cancel()
        elif self._alone:
            self._local.cancel(request_id)

    def hold(self, request_id: str, held: bool) -> None:
        """See TokenSource."""
        if relay := self._relays.get(request_id):
            relay.hold(held)
        elif self._alone:
            self._local.hold(request_id, held)

    def has(self, request_id: str) -> bool:
        """Whether this request is under way from here."""
        return request_id in self._relays

    def served_by(self, request_id: str) -> Callable[[], Mapping[str, str]]:
        """The header of a request that was just submitted, whenever it is told."""
        relay = self._relays.get(request_id)
        places = relay.places if relay else [LOCAL]
        return lambda: {SERVED_BY: ", ".join(places)}

    def stop(self) -> None:
        """Nothing that breaks from now on goes on elsewhere."""
        self._stopped = True

    async def drained(self) -> None:
        """Wait until nothing that was begun here is under way elsewhere."""
        await self._idle.wait()

    def decide(self, request: Request, tried: dict[str, str]) -> Decision:
        """See failover.Desk."""
        if self._stopped:
            return Decision(LATER, "nobody", blocked={LOCAL: "this node stops"})
        task = Task(len(request.prompt), request.max_tokens, self._last.get(_session(request), ""))
        return decide(task, self.places.all(request, tried), self._policy, self.places.chance)

    def may_hedge(self, request: Request, place: str) -> float | None:
        """See failover.Desk."""
        if request.kind != "generate" or not (place == LOCAL or place.startswith("peer/")):
            return None
        return self.places.record(place).usual_s()

    def hedge(self, request: Request, tried: dict[str, str]) -> str | None:
        """See failover.Desk."""
        found = self.decide(request, tried)
        names = [name for name in (found.place, *found.others) if name == LOCAL or name.startswith("peer/")]
        if not names or found.place == LATER or not self._budget.spend():
            return None
        return names[0]

    def paused(self, gone: str, to: str, seconds: float) -> None:
        """See failover.Desk."""
        self._failovers[gone.partition("/")[0], to.partition("/")[0]] += 1
        self._pauses.append(seconds)
        log.warning("a stream went on elsewhere", extra={"from": gone, "to": to, "pause_s": round(seconds, 3)})

    def ended(self, request: Request, places: list[str]) -> None:
        """See failover.Desk."""
        self._relays.pop(request.id, None)
        if not self._relays:
            self._idle.set()
        session = _session(request)
        if places and session[2]:
            self._last[session] = places[-1]
            self._last.move_to_end(session)
            if len(self._last) > _MOST_SESSIONS:
                self._last.popitem(last=False)

    def status(self) -> Mapping[str, Any]:
        """How it decided since the node began, what broke, and the places that were asked."""
        pauses = sorted(self._pauses)
        return {
            "under_way": len(self._relays),
            "hedges": self._budget.used,
            "pause_p95_s": pauses[-(-95 * len(pauses) // 100) - 1] if pauses else None,
            "decided": {place: self._why(place) for place in (LOCAL, "peer", "cloud", LATER)},
            "failovers": {f"{gone} to {to}": {"count": count} for (gone, to), count in self._failovers.items()},
            "upstreams": self.places.status(),
        }

    def _why(self, place: str) -> dict[str, int]:
        return {why: count for (where, why), count in sorted(self._decisions.items()) if where == place}


class RoutedAdmission:
    """`inner`, with who answers among the headers."""

    def __init__(self, inner: Admission, router: Router) -> None:
        self._inner = inner
        self._router = router

    @property
    def recalls(self) -> bool:
        return self._inner.recalls

    def shape(self, request: Request) -> tuple[Request, tuple[str, ...]]:
        return self._inner.shape(request)

    def headers(self, request_id: str) -> Callable[[], Mapping[str, str]]:
        limits, served_by = self._inner.headers(request_id), self._router.served_by(request_id)
        return lambda: {**limits(), **served_by()}


def _session(request: Request) -> tuple[str, str, str]:
    caller = request.caller
    return caller.tenant, caller.user, caller.session
