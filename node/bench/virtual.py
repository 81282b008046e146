"""A node in virtual time: the real gate, governor and step plan before an engine that only knows what its steps cost.

Minutes of load take seconds, and come out the same each time, so that settings can be compared without the noise of a
machine. A step costs a base, so much for each stream and so much for each prompt token, as `Costs` says. Memory is not
simulated, clients cost nothing, and a parked request keeps what it has read.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from node.admission import policy
from node.admission.gate import Gate, nothing_warm
from node.admission.governor import Governor
from node.admission.load import Memory
from node.bench import scores
from node.bench.load import PATIENCE_S, Alone, Outcome
from node.bench.overload import Overload, Plan, Setting
from node.bench.workload import Ask
from node.engine.batch import Row, StepCost, Targets, plan_step
from node.errors import Expired, NodeError, Overloaded
from node.generation import LEVELS, Event, Failed, Finished, Request, Sink, Started, Token
from node.settings import Engine, Settings

_PROBES = 20  # requests a slot, to see what the engine can do
_CELLS = 1 << 40
_BATCH = 512


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a step. The defaults are the default model's on two cores of a server."""

    base_s: float = 0.0045
    stream_s: float = 0.0048
    prompt_token_s: float = 0.0007
    targets: Targets = Targets.of(Engine())  # noqa: RUF009  # a frozen value

    def budget(self, rows: Sequence[Row]) -> int:
        """Prompt tokens that fit a step beside those of the rows that stream."""
        streams = sum(row.pending == 1 for row in rows)
        reading_s = StepCost.reading_s(self.seconds(streams, 0), self.targets.seconds(rows))
        return max(StepCost.LEAST, int(reading_s / self.prompt_token_s))

    def seconds(self, streams: int, prompt_tokens: int) -> float:
        """What a step takes."""
        return self.base_s + self.stream_s * streams + self.prompt_token_s * prompt_tokens

    @property
    def alone(self) -> Alone:
        """What a prompt costs an idle node."""
        return Alone(self.base_s + self.stream_s, self.prompt_token_s)


@dataclass(slots=True)
class _Sequence:
    request: Request
    sink: Sink
    pending: int
    rank: int
    made: int = 0
    held: bool = False


class VirtualEngine:
    """A TokenSource whose clock is `now`; `step` moves it."""

    def __init__(self, costs: Costs) -> None:
        self.now = 0.0
        self._costs = costs
        self._sequences: dict[str, _Sequence] = {}

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return any(not sequence.held for sequence in self._sequences.values())

    @property
    def sequences(self) -> int:
        """How many it has, those held included."""
        return len(self._sequences)

    def submit(self, request: Request, sink: Sink) -> None:
        """Begin to read its prompt with the next step."""
        made, rank = len(request.continued), LEVELS.index(request.level)
        self._sequences[request.id] = _Sequence(request, sink, len(request.prompt) + made, rank, made)

    def cancel(self, request_id: str) -> None:
        """End it with the next look at it: here, at once."""
        if sequence := self._sequences.pop(request_id, None):
            sequence.sink(Finished("cancelled", len(sequence.request.prompt), sequence.made))

    def hold(self, request_id: str, held: bool) -> None:
        """It makes no tokens and costs nothing."""
        if sequence := self._sequences.get(request_id):
            sequence.held = held

    def step(self) -> None:
        """One step of continuous batching."""
        active = [sequence for sequence in self._sequences.values() if not sequence.held]
        active.sort(key=lambda sequence: sequence.rank)
        rows = [Row(index, each.pending, 1, each.rank) for index, each in enumerate(active)]
        streams = sum(row.pending == 1 for row in rows)
        plan = plan_step(rows, _CELLS, self._costs.budget(rows), _BATCH)
        self.now += self._costs.seconds(streams, plan.tokens - streams)
        for chunk in plan.chunks:
            sequence = active[chunk.slot]
            sequence.pending -= chunk.tokens
            if chunk.last:
                sequence.pending, sequence.made = 1, sequence.made + 1
                self._give(sequence)

    def _give(self, sequence: _Sequence) -> None:
        request = sequence.request
        if sequence.made == len(request.continued) + 1:
            sequence.sink(Started())
        sequence.sink(Token(0, b"."))
        if sequence.made >= request.max_tokens:
            del self._sequences[request.id]
            sequence.sink(Finished("length", len(request.prompt), sequence.made))


def capacity(asks: Iterable[Ask], slots: int, costs: Costs) -> float:
    """Requests a second, when all slots are in use all the time."""
    engine, coming, started = VirtualEngine(costs), iter(asks), 0

    def start(event: Event | None = None) -> None:
        nonlocal started
        if event is not None and not isinstance(event, Finished):
            return
        if (ask := next(coming, None)) is not None:
            started += 1
            engine.submit(Request(str(started), (0,) * ask.prompt_tokens, ask.answer_tokens), start)

    for _ in range(slots):
        start()
    while engine.sequences == slots:
        engine.step()
    return (started - slots) / engine.now


class Play:
    """One node's turn: all of `asks` come when they are due; `outcomes` and the engine's clock are what is left."""

    def __init__(self, settings: Settings, costs: Costs) -> None:
        self.engine = VirtualEngine(costs)
        self.outcomes: list[Outcome] = []
        slots = settings.engine.slots
        steered = settings.queue.policy == "levels"
        self._governor = Governor(slots, policy.objectives(settings.load)) if steered else None
        rules = policy.rules(settings.queue)
        self._gate = Gate(self.engine, slots, rules, slots, nothing_warm, self._governor, lambda: self.engine.now)

    async def run(self, asks: Iterable[Ask], until: float) -> list[Outcome]:
        """Until nothing is left to do, or that moment."""
        coming, steered_at = list(asks), 0.0
        coming.reverse()
        while self.engine.now <= until and (coming or self.engine.busy):
            if not self.engine.busy:
                self.engine.now = max(self.engine.now, coming[-1].at)
            while coming and coming[-1].at <= self.engine.now:
                self._ask(coming.pop())
            if self.engine.now - steered_at >= 1.0:
                steered_at = self.engine.now
                self._gate.steer(Memory())
            if self.engine.busy:
                self.engine.step()
            await asyncio.sleep(0)  # what the gate tells later
        return self.outcomes

    def _ask(self, ask: Ask) -> None:
        outcome = Outcome(ask, ask.at)
        request = Request(str(len(self.outcomes)), (0,) * ask.prompt_tokens, ask.answer_tokens, level=ask.level)
        self.outcomes.append(outcome)

        def sink(event: Event) -> None:
            if isinstance(event, Token):
                outcome.arrivals.times.append(self.engine.now)
            elif isinstance(event, Finished):
                outcome.ending = "whole"
            elif isinstance(event, Failed):
                self._failed(outcome, event.error)

        try:
            self._gate.submit(request if self._governor is None else self._governor.shape(request)[0], sink)
        except NodeError as error:
            self._failed(outcome, error)

    def _failed(self, outcome: Outcome, error: NodeError) -> None:
        outcome.why = error.message
        outcome.ending = "expired" if isinstance(error, Expired) else "failed"
        if isinstance(error, Overloaded):
            outcome.ending = "refused"


class VirtualOverload(Overload):
    """The same turns, figures and facts as on real nodes, which are named by their settings here."""

    def __init__(self, nodes: Mapping[str, Settings], plan: Plan, costs: Costs, tell: Callable[[str], None]) -> None:
        self._nodes, self._costs = nodes, costs
        first = next(iter(nodes.values()))
        super().__init__([Setting(name, "") for name in nodes], first.engine.slots, plan, tell, lambda at, text: None)

    async def run(self) -> None:
        """All turns."""
        plan = self.plan
        self.objective = replace(self.objective, alone=self._costs.alone)
        rates = plan.rates
        if not rates:
            self._tell("what it can do")
            able = capacity(itertools.islice(plan.endless(plan.seed), _PROBES * self._slots), self._slots, self._costs)
            self.facts.append(f"it can do {able:.2f} requests/s of this kind, {self._slots} at a time")
            rates = tuple(able * times for times in plan.times)
        self.facts.append("in virtual time: no client, no memory, steps cost what they cost on two server cores")
        for turn, rate, setting in itertools.product(range(plan.rounds), rates, self.settings):
            self._tell(f"round {turn + 1}, {rate:.2f} requests/s, {setting.name}")
            asks = plan.asks(rate, plan.seed + turn)
            outcomes = await Play(self._nodes[setting.name], self._costs).run(asks, plan.seconds + PATIENCE_S)
            setting.turns.setdefault(rate, []).append(scores.Run(outcomes, plan.seconds))
