"""More than a node can do, setting against setting: turns of the same requests, on a node each, and their figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from node.bench import front, load, scores, workload
from node.bench.figures import percentile
from node.bench.report import Figure
from node.bench.workload import Arrival, Ask, Mixture, Pace
from node.client import Client
from node.errors import OperatorError

GAIN, ATTAINED = 1.5, 0.9
Bound = Callable[[float, int], float]  # of a wait: by the longest time that a slot was held, and how many were before

_ENDLESS_RATE = 10.0  # of what a closed loop takes its requests from; it sets its own pace


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is asked. `rates` are requests a second; without them, `times` are multiples of what the node can do.

    `closed` is how many clients ask again as soon as they were answered; 0 is an open loop. `rows` is a trace.
    """

    mixture: Mixture
    rows: Sequence[Arrival] | None = None
    times: tuple[float, ...] = (2.0,)
    rates: tuple[float, ...] = ()
    closed: int = 0
    seconds: float = 25.0
    rounds: int = 2
    surge: float = 1.0
    gap_s: float = 0.1
    probe_s: float = 12.0
    seed: int = 1

    def asks(self, rate: float, seed: int) -> list[Ask]:
        """One turn's requests."""
        pace = Pace(rate, self.seconds, self.surge)
        if self.rows is None:
            return workload.poisson(self.mixture, pace, seed)
        return workload.traced(self.rows, self.mixture, pace, seed)

    def endless(self, seed: int) -> Iterator[Ask]:
        """Requests of the same kind, for those who set their own pace."""
        while True:
            yield from self.asks(_ENDLESS_RATE, seed)
            seed += 1000


@dataclass(slots=True)
class Setting:
    """A node with settings of its own, and its turns by rate."""

    name: str
    url: str
    turns: dict[float, list[scores.Run]] = field(default_factory=dict)


class Overload:
    """The run; the settings' `turns` fill up. `tell` hears when something begins, `note` how far it is."""

    def __init__(
        self,
        settings: Sequence[Setting],
        slots: int,
        plan: Plan,
        tell: Callable[[str], None],
        note: Callable[[float, str], None],
    ) -> None:
        self.settings, self.plan = settings, plan
        self._slots, self._tell, self._note = slots, tell, note
        self.objective = scores.Objective(load.Alone(0, 0), plan.gap_s)
        self.facts: list[str] = []

    @property
    def runs(self) -> int:
        """How often `tell` is called."""
        plan = self.plan
        loads = 1 if plan.closed else len(plan.rates or plan.times)
        return 1 + (not plan.rates and not plan.closed) + plan.rounds * loads * len(self.settings)

    async def run(self) -> None:
        """Measure the idle node, what it can do, then all turns."""
        async with self._client(self.settings[0]) as client:
            self._tell("prompts on the idle node")
            self.objective = replace(self.objective, alone=await load.alone(client))
            rates = await self._rates(client)
        alone = self.objective.alone
        self.facts.append(
            f"reading a prompt alone: {alone.base_s * 1e3:.0f} ms + {alone.per_token_s * 1e3:.2f} ms/token"
        )
        for turn, rate in ((turn, rate) for turn in range(self.plan.rounds) for rate in rates):
            for setting in self.settings:
                how = f"{self.plan.closed} clients" if self.plan.closed else f"{rate:.2f} requests/s"
                self._tell(f"round {turn + 1}, {how}, {setting.name}")
                setting.turns.setdefault(rate, []).append(await self._turn(setting, rate, self.plan.seed + turn))

    async def _rates(self, client: Client) -> Sequence[float]:
        plan = self.plan
        if plan.closed or plan.rates:
            return plan.rates or (0.0,)
        self._tell("what it can do")
        able = await self._capacity(client)
        self.facts.append(f"it can do {able:.2f} requests/s of this kind, {self._slots} at a time")
        return [able * times for times in plan.times]

    async def _capacity(self, client: Client) -> float:
        """Requests a second; a machine that is too slow for the time planned gets more."""
        seconds = self.plan.probe_s
        while True:
            outcomes = await load.closed_loop(client, self.plan.endless(self.plan.seed), self._slots, seconds)
            if sum(one.ending == "whole" for one in outcomes) >= self._slots:
                return load.capacity(outcomes, seconds)
            if seconds > load.PATIENCE_S:
                raise OperatorError(f"The node answered less than {self._slots} requests in {seconds:.0f} s.")
            seconds *= 2

    async def _turn(self, setting: Setting, rate: float, seed: int) -> scores.Run:
        plan = self.plan
        async with self._client(setting) as client:
            if plan.closed:
                outcomes = await load.closed_loop(client, plan.endless(seed), plan.closed, plan.seconds)
            else:
                outcomes = await load.open_loop(client, plan.asks(rate, seed), self._note)
        return scores.Run(outcomes, plan.seconds)

    def _client(self, setting: Setting) -> Client:
        return Client(setting.url, silence_s=load.PATIENCE_S)


def figures(test: Overload, step_ms: float, bound_s: Bound) -> Iterator[Figure]:
    """The targets of the first setting at the highest rate, then every setting and rate level by level.

    `bound_s` gives how long background may wait.
    """
    first, objective = test.settings[0], test.objective
    rate = max(first.turns)
    runs = first.turns[rate]
    yield scores.problems([run for turns in first.turns.values() for run in turns])  # the others' stand in their lines
    yield from _promises(runs, objective, step_ms, bound_s)
    for other in test.settings[1:]:
        yield _gain(runs, other, other.turns[rate], objective)
    for one in test.settings:
        for rate, turns in one.turns.items():
            name = one.name if len(one.turns) == 1 else f"{one.name}, {rate:.2f}/s"
            yield from scores.level_figures(name, turns, objective)


def points(test: Overload) -> Iterator[front.Point]:
    """One a setting and rate."""
    for one in test.settings:
        for rate, turns in one.turns.items():
            outcomes = [outcome for run in turns for outcome in run.outcomes]
            yield front.Point(
                one.name,
                rate,
                statistics.fmean(map(scores.throughput, turns)),
                statistics.fmean(scores.goodput(run, test.objective) for run in turns),
                scores.attainment(outcomes, test.objective),
                *(scores.ttft(outcomes, share) for share in (0.5, 0.95)),
                *(scores.gap(outcomes, share) for share in (0.5, 0.99)),
            )


def _promises(
    runs: Sequence[scores.Run], objective: scores.Objective, step_ms: float, bound_s: Bound
) -> Iterator[Figure]:
    critical = [one for run in runs for one in run.of("critical")]
    if late := [each for one in critical if (each := objective.excess_s(one)) is not None]:
        p95 = percentile(late, 0.95) * 1000
        yield Figure("critical TTFT beyond its objective, p95", p95, "ms", at_most=step_ms, detail=f"{len(late)} asked")
    if interactive := [one for run in runs for one in run.of("interactive")]:
        yield Figure("interactive SLO attainment", scores.attainment(interactive, objective), at_least=ATTAINED)
    if background := [one for run in runs for one in run.of("background")]:
        whole = sum(one.ending == "whole" for one in background)
        longest, most = scores.longest_held_s(runs, objective), scores.most_at_once(runs)
        bound = bound_s(longest, max(0, most - 1))
        told = f"no slot was held over {longest:.1f} s, at most {most} were in the node"
        yield Figure("background's longest wait", scores.ttft(background, 1.0), "s", at_most=bound, detail=told)
        yield Figure("background answers", whole, "answers", at_least=1, detail=f"of {len(background)} asked for")


def _gain(
    runs: Sequence[scores.Run], other: Setting, theirs: Sequence[scores.Run], objective: scores.Objective
) -> Figure:
    rates = [
        (scores.goodput(mine, objective), scores.goodput(run, objective))
        for mine, run in zip(runs, theirs, strict=True)
    ]
    ratios = [mine / his if his else float("inf") for mine, his in rates]
    told = ", ".join(f"{mine:.1f} / {his:.1f}" for mine, his in rates) + " tokens/s"
    target = GAIN if "queue.policy=fifo" in other.name.split() else None
    return Figure(f"goodput / with {other.name}", statistics.median(ratios), at_least=target, detail=told)
