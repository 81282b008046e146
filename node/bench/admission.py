"""What the decisions themselves cost: the queue with thousands waiting, and millions of limit decisions.

Time is simulated, so that hours of traffic pass in minutes; no node is started. The limits are watched by an oracle
that adds up what was admitted: no minute may have seen more than the cap and one burst.
"""

from __future__ import annotations

import random
import statistics
import time
import tracemalloc
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from node.admission.account import QUANTITIES, WINDOW_S, Quantity, Rates
from node.admission.limits import Allowance, Limits, Reservation
from node.admission.queue import AdmissionQueue
from node.admission.rules import Rules
from node.bench.figures import percentile
from node.bench.report import Figure
from node.errors import RateLimited, TooLarge
from node.generation import LEVELS, Caller, Request

TELL_EVERY = 250_000
MOST_TURN_US, MOST_TICKET_KIB, MOST_DECISION_US = 100.0, 4.0, 10.0

_TENANTS, _USERS, _SESSIONS = 4, 5, 50  # users of each tenant, sessions of each user
_WATCHED = "tenant0"  # and its users and sessions: watching takes longer than deciding
_MODELS = ("small", "large")

_SAMPLED = 10  # one decision of so many is timed


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    waiting: int = 10_000
    turns: int = 20_000
    decisions: int = 10_000_000


FULL, QUICK = Plan(), Plan(turns=2_000, decisions=200_000)


def queue_figures(plan: Plan) -> list[Figure]:
    """A turn: a newcomer comes in, a slot becomes free, the next one is picked."""
    # Not the door is measured here, so it is wide open.
    rules = Rules(max_waiting=4 * plan.waiting, max_bytes=1 << 40, patience=1e9, urgent_patience=1e9)
    queue, chance = AdmissionQueue(1, rules), random.Random(1)
    callers = [Caller("t", "u", str(number)) for number in range(1000)]

    def request(number: int) -> Request:
        level, caller = chance.choice(LEVELS), chance.choice(callers)
        return Request(str(number), (1,), 100, level=level, caller=caller, ttl_s=chance.choice((None, 1e6)))

    newcomers = [request(number) for number in range(plan.waiting + plan.turns)]
    tracemalloc.start()
    for number in range(plan.waiting):
        queue.offer(newcomers[number], number / 1000, chance.random())
    held = tracemalloc.get_traced_memory()[0] / plan.waiting
    tracemalloc.stop()
    now = plan.waiting / 1000
    (running,) = queue.decide(now).start
    spent = []
    for newcomer in newcomers[plan.waiting :]:
        now += 0.001
        affinity = chance.random()
        began = time.perf_counter()
        queue.offer(newcomer, now, affinity)
        queue.release(running, now)
        running = queue.decide(now).start[0]
        spent.append((time.perf_counter() - began) * 1e6)
    p99 = percentile(spent, 0.99)
    return [
        Figure(
            f"enqueue + pick, {plan.waiting:,} waiting",
            statistics.median(spent),
            "µs",
            at_most=MOST_TURN_US,
            detail=f"median of {plan.turns:,}, p99 {p99:.0f} µs",
        ),
        Figure(
            "memory of one that waits",
            held / 1024,
            "KiB",
            at_most=MOST_TICKET_KIB,
            detail="the queue's own; the request with its prompt comes on top",
        ),
    ]


class Oracle:
    """Adds up what keys were given, to tell the most that any minute saw as a share of cap and burst."""

    def __init__(self, rates: Rates) -> None:
        self._bounds = {name: (rates.cap(name) or 0.0) + (rates.most(name) or 0) for name in QUANTITIES}
        self._given: dict[tuple[str, ...], tuple[deque[tuple[float, int]], list[int]]] = {}
        self.worst = 0.0

    def saw(self, key: tuple[str, ...], quantity: Quantity, amount: int, now: float) -> None:
        """So much was given now."""
        events, total = self._given.setdefault((quantity, *key), (deque(), [0]))
        events.append((now, amount))
        total[0] += amount
        while events[0][0] <= now - WINDOW_S:
            total[0] -= events.popleft()[1]
        self.worst = max(self.worst, total[0] / self._bounds[quantity])


def limit_figures(plan: Plan, tell: Callable[[str], None]) -> list[Figure]:
    """Callers who ask for more than they may have, in waves; all four limits hold for each."""
    rates = (
        Rates(requests=30_000, prompt=6_000_000, output=3_000_000),
        Rates(requests=8_000, prompt=1_500_000, output=800_000, burst=0.25),
        Rates(requests=5_000, prompt=1_000_000, output=500_000),
        Rates(requests=600, prompt=100_000, output=50_000, burst=1.0),
    )
    limits, chance = Limits(), random.Random(2)
    allowance, oracles = Allowance(*rates), [Oracle(rate) for rate in rates]
    callers = [
        Caller(f"tenant{tenant}", f"user{tenant}-{user}", str(session))
        for tenant in range(_TENANTS)
        for user in range(_USERS)
        for session in range(_SESSIONS)
    ]
    running: deque[tuple[Caller, str, Reservation]] = deque()
    spent, now, admitted = [], 0.0, 0
    for number in range(plan.decisions):
        # Three minutes of crowd, one of calm: what was saved up in the calm is spent at once.
        now += 0.0004 if now % 240 < 180 else 0.004
        caller, model = callers[int(chance.random() * len(callers))], _MODELS[number & 1]
        prompt, output = int(chance.random() * 400) + 1, int(chance.random() * 200) + 1
        began = time.perf_counter() if number % _SAMPLED == 0 else None
        try:
            reservation = limits.reserve(caller, model, allowance, prompt, output, now)
        except (RateLimited, TooLarge):
            reservation = None
        if began is not None:
            spent.append((time.perf_counter() - began) * 1e6)
        if reservation is not None:
            admitted += 1
            running.append((caller, model, reservation))
            if caller.tenant == _WATCHED:
                for oracle, key in zip(oracles, _keys(caller, model), strict=True):
                    oracle.saw(key, "requests", 1, now)
                    oracle.saw(key, "prompt", prompt, now)
        if len(running) > 200:
            _end(*running.popleft(), oracles, now)
        if number % TELL_EVERY == TELL_EVERY - 1:
            tell(f"{number + 1:,} limit decisions, {admitted / (number + 1):.0%} admitted")
    return [
        Figure(
            "limit decision, four limits",
            statistics.median(spent),
            "µs",
            at_most=MOST_DECISION_US,
            detail=f"{plan.decisions:,} in {now / 60:.0f} simulated minutes, {admitted / plan.decisions:.0%} admitted, "
            f"p99 {percentile(spent, 0.99):.0f} µs",
        ),
        Figure(
            "most that any minute saw",
            max(oracle.worst for oracle in oracles),
            at_most=1.0,
            detail="as a share of cap + burst: the highest of a tenant, its keys, models and sessions",
        ),
    ]


def _end(caller: Caller, model: str, reservation: Reservation, oracles: list[Oracle], now: float) -> None:
    """An answer ends a little shorter than it might have been."""
    used = reservation.output * 4 // 5
    reservation.settle(used, now)
    if caller.tenant == _WATCHED:
        for oracle, key in zip(oracles, _keys(caller, model), strict=True):
            oracle.saw(key, "output", used, now)


def _keys(caller: Caller, model: str) -> tuple[tuple[str, ...], ...]:
    """What each limit counts by, in the order of an Allowance."""
    tenant, user = caller.tenant, caller.user
    return (tenant,), (tenant, user), (tenant, user, model), (tenant, user, caller.session)
