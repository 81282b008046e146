"""All of admission joined: limits, then the queue, then whatever runs requests; and what steers them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from node.admission import policy
from node.admission.gate import Gate, WarmShare, nothing_warm
from node.admission.governor import Governor
from node.admission.load import Memory
from node.admission.quota import Quotas
from node.admission.toll import Toll
from node.generation import ModelInfo, Request, TokenSource
from node.settings import Settings


class Reception:
    """Requests go in at `source`; `gate` is where they wait. Also the server's `Admission`.

    `route` may put a stage between limits and queue, so that what is answered elsewhere waits for no slot.

    With queue.policy "fifo" nothing steers: requests run in order of arrival, as many as there are slots.
    """

    def __init__(
        self,
        behind: TokenSource,
        info: ModelInfo,
        settings: Settings,
        quotas: Quotas,
        warm_share: WarmShare = nothing_warm,
        route: Callable[[Gate], TokenSource] = lambda gate: gate,
    ) -> None:
        steered = settings.queue.policy == "levels"
        self._governor = Governor(info.slots, policy.objectives(settings.load)) if steered else None
        rules = policy.rules(settings.queue)
        self.gate = Gate(behind, info.slots, rules, info.parked, warm_share, self._governor)
        self._toll = Toll(route(self.gate), quotas, info.id, context=info.context)
        self.source: TokenSource = self._toll

    @property
    def rung(self) -> int:
        """How many rungs of the ladder it has gone up; 0 is normal."""
        return 0 if self._governor is None else self._governor.height

    @property
    def recalls(self) -> bool:
        return self._governor is not None and self._governor.recalls

    def shape(self, request: Request) -> tuple[Request, tuple[str, ...]]:
        return (request, ()) if self._governor is None else self._governor.shape(request)

    def headers(self, request_id: str) -> Callable[[], Mapping[str, str]]:
        return self._toll.headers(request_id)

    def steer(self, kv_total: int, memory: tuple[float, float] | None) -> None:
        """Once a second: look at what is used of the KV cache, and of memory as (used, all)."""
        self.gate.steer(Memory((self.gate.sensors.tokens_running, kv_total), memory))

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        """A section each: queue, load, limits."""
        steering = {} if self._governor is None else {"load": self._governor.status()}
        return {"queue": self.gate.status(), **steering, "limits": self._toll.status()}
