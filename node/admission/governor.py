"""What steers a node under load, put together: concurrency, surges, the ladder; pure, ticked once a second.

Stress is what critical and interactive requests feel: the worst of the p95 gap between their tokens and of their wait
for a slot, against their objectives. Standard and background have no say in it: a node that has more to do than it can
keeps them waiting, and that alone is no reason to give anything up. Nor is a slow machine, or one that is busy with
something else: the gaps that it makes with few streams are learnt, and the objective is never less than twice as much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from node.admission.ladder import RUNGS, Ladder, Rung, Step, effect, stress
from node.admission.load import Concurrency, Memory
from node.admission.sensors import Sensors
from node.admission.surge import STAGES, SurgeFuse
from node.errors import Overloaded
from node.generation import Level, Request

_URGENT: tuple[Level, ...] = ("critical", "interactive")
_SLACK = 2.0
_SMOOTHING = 0.5


@dataclass(frozen=True, slots=True)
class Objectives:
    """Seconds: between two tokens, and of waiting for a slot. `cached_answers` may be given on their rung."""

    gap_s: float = 0.1
    wait_s: float = 1.0
    cached_answers: bool = False


class Governor:
    """One node's. `limit` is how many may run, `rung` where the ladder stands."""

    def __init__(self, slots: int, objectives: Objectives) -> None:
        self._objectives = objectives
        self._few = max(1, slots // 4)
        self._able: frozenset[Rung] = frozenset({"cached"} if objectives.cached_answers else ())
        self._concurrency = Concurrency(slots, objectives.gap_s)
        self._fuse = SurgeFuse()
        self._ladder = Ladder()
        self._stress = 0.0
        self._pressure = 0.0
        self._usual_s = 0.0  # p95 of the gaps that this machine makes with few streams; 0 where none was seen
        self._steps: Counter[tuple[Rung, str]] = Counter()

    @property
    def limit(self) -> int:
        return self._concurrency.limit

    @property
    def short_of_memory(self) -> bool:
        """Whether that is why the limit is low."""
        return self._concurrency.reason == "memory"

    @property
    def rung(self) -> Rung:
        return self._ladder.rung

    @property
    def height(self) -> int:
        """How many rungs up it stands; 0 is normal."""
        return RUNGS.index(self._ladder.rung)

    @property
    def recalls(self) -> bool:
        """Whether an answer that was just given may be given again."""
        return effect(self.rung, "standard").cached

    def check(self, level: Level, busy: bool, now: float) -> None:
        """A request comes; raises Overloaded where its level is kept out now. `busy`: all slots are taken."""
        self._fuse.arrived(now, busy)
        if self._fuse.closed(level):
            raise Overloaded(
                f"Far more is asked of this node than usual; it takes no {level} requests for now.",
                retry_after=self._fuse.retry_after(now),
            )
        if effect(self.rung, level).refused:
            raise Overloaded(
                f"This node is overloaded and takes no {level} requests for now.",
                retry_after=self._ladder.retry_after(now),
            )

    def shape(self, request: Request) -> tuple[Request, tuple[Rung, ...]]:
        """`request` as it may run now, and which rungs cut its answer down; without drafts it is the same answer."""
        does = effect(self.rung, request.level)
        most = request.max_tokens if does.max_tokens is None else min(request.max_tokens, does.max_tokens)
        shaped = replace(request, max_tokens=most, logprobs=request.logprobs if does.logprobs else None)
        return replace(shaped, drafts=does.drafts), () if shaped == request else ("shorten",)

    def tick(self, sensors: Sensors, memory: Memory, running: int, now: float) -> Step | None:
        """Look at everything; gives the ladder's step if it took one."""
        self._fuse.look(now, running >= self.limit)
        self._pressure = memory.pressure
        p95_s = sensors.pace.percentile(0.95, now)
        self._learn(p95_s, running)
        objective_s = self._gap_objective_s
        scaled_s = None if p95_s is None else p95_s * self._objectives.gap_s / objective_s
        self._concurrency.update(memory, scaled_s, running, now)
        gap_s, wait_s = sensors.gap_s(_URGENT, now), sensors.wait_s(_URGENT, now)
        self._stress = stress(((gap_s, objective_s), (wait_s, self._objectives.wait_s)))
        step = self._ladder.update(self._stress, self._able, now)
        if step is not None:
            up = RUNGS.index(step.new) > RUNGS.index(step.old)
            self._steps[(step.new, "up") if up else (step.old, "down")] += 1
        return step

    @property
    def _gap_objective_s(self) -> float:
        return max(self._objectives.gap_s, _SLACK * self._usual_s)

    def _learn(self, p95_s: float | None, running: int) -> None:
        if p95_s is None:
            return
        if running <= self._few:
            self._usual_s += (p95_s - self._usual_s) * (_SMOOTHING if self._usual_s else 1.0)
        elif self._usual_s:
            self._usual_s = min(self._usual_s, p95_s)

    def status(self) -> Mapping[str, Any]:
        """Where it stands."""
        return {
            "rung": self.rung,
            "stress": self._stress,
            "gap_objective_s": self._gap_objective_s,
            "memory_share": self._pressure,
            "limit": self.limit,
            "limited_by": self._concurrency.reason or "nothing",
            "surge_keeps_out": ", ".join(sorted(STAGES[self._fuse.stage])) or "nobody",
            "usual_requests_per_5s": self._fuse.usual,
            "steps": {rung: {way: self._steps[rung, way] for way in ("up", "down")} for rung in RUNGS[1:]},
        }
