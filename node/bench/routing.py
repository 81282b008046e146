"""What it costs a request that others might answer it: the decision with 50 neighbours, and each token's way through.

Nothing is sent: neighbours are what they say of themselves, and the source behind makes tokens as fast as it is asked.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from node.bench.figures import percentile
from node.bench.report import Figure
from node.errors import Unavailable
from node.generation import (
    Caller,
    Constraint,
    Event,
    Finished,
    ModelInfo,
    Request,
    Sink,
    Started,
    Token,
)
from node.mesh import sketch
from node.mesh.places import Neighbour, Places, WarmShare
from node.mesh.route import LOCAL, Place, Policy
from node.mesh.router import Router
from node.mesh.sight import Sight
from node.mesh.wire import TENANT
from node.settings import Routes

MOST_DECISION_MS, MOST_TOKEN_US = 1.0, 50.0
_DIGEST, _KEY = "same", b"k" * 32


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    neighbours: int = 50
    decisions: int = 2000
    prompt_tokens: int = 2000
    tokens: int = 20_000


FULL, QUICK = Plan(), Plan(decisions=200, tokens=2000)


@dataclass(frozen=True, slots=True)
class Simulated:
    """A neighbour as the table shows one."""

    id: str
    sight: Sight
    round_trip_s: float


class Crowd:
    """A neighbourhood that changes with every look, as a real one does; it cannot be talked to."""

    def __init__(self, count: int) -> None:
        self._chance = random.Random(1)
        self._sketches = [self._sketch(number) for number in range(count)]

    def candidates(self) -> Sequence[Neighbour]:
        return [self._one(f"{number:032x}", drawn) for number, drawn in enumerate(self._sketches)]

    def session(self, node_id: str) -> aiohttp.ClientSession:
        raise Unavailable("They are only simulated.")

    def doubt(self, node_id: str, reason: str) -> None:
        pass

    def _sketch(self, number: int) -> bytes:
        """Eight warm prefixes of a thousand tokens."""
        seeds = [number * 8 + prefix for prefix in range(8)]
        return sketch.draw(_KEY, [(TENANT, [(seed * 7 + at) % 256 for at in range(1024)]) for seed in seeds])

    def _one(self, id: str, drawn: bytes) -> Simulated:
        sight = Sight(
            id=id,
            version="0",
            model="m",
            model_digest=_DIGEST,
            context=8192,
            slots=8,
            free_slots=int(self._chance.random() * 8),
            waiting=0,
            wait_s=self._chance.random() * 2,
            prefill_s=0.001,
            decode_s=0.02,
            sketch=drawn,
        )
        return Simulated(id, sight, 0.002)


class _Bytes:
    """A model of bytes, as far as routing asks for one."""

    info = ModelInfo("m", "none", 0, 8192, 8, 256, 0, can_chat=True)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> bytes:
        return bytes(ids)

    def chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        return []

    def check(self, constraint: Constraint) -> None:
        pass


class _Quick:
    """A source that has its tokens ready."""

    def __init__(self) -> None:
        self.sinks: dict[str, Sink] = {}

    def submit(self, request: Request, sink: Sink) -> None:
        self.sinks[request.id] = sink

    def cancel(self, request_id: str) -> None:
        self.sinks.pop(request_id, None)

    def hold(self, request_id: str, held: bool) -> None:
        pass


def warm_share() -> WarmShare:
    """How a node finds its prompt in its neighbours' sketches: the prompt is hashed once for all of them."""
    latest: list[tuple[tuple[int, ...], sketch.Marks]] = []

    def share(neighbour: Neighbour, request: Request) -> float:
        if not latest or latest[0][0] is not request.prompt:
            latest[:] = [(request.prompt, sketch.marks(_KEY, request.prompt, TENANT))]
        return sketch.warm_tokens(neighbour.sight.sketch, latest[0][1]) / len(request.prompt)

    return share


def routed(plan: Plan, warm: WarmShare | None = None) -> tuple[Router, _Quick]:
    """A router between this node and a crowd, and the source of this node."""
    local, crowd = _Quick(), Crowd(plan.neighbours)
    places = Places(
        local,
        lambda request: Place(LOCAL, "local", wait_s=0.001, prefill_s=0.0001, decode_s=0.001),
        _Bytes(),
        _DIGEST,
        crowd,
        None,
        Routes(),
        warm or warm_share(),
    )
    return Router(local, places, Policy(peer_s=60.0), 0.05, lambda: False), local


async def figures(plan: Plan) -> list[Figure]:
    """The decision, the whole way in, and a token's way out."""
    router, local = routed(plan)
    chance = random.Random(2)

    def request(number: int) -> Request:
        prompt = tuple(chance.randrange(256) for _ in range(plan.prompt_tokens))
        return Request(str(number), prompt, plan.tokens, caller=Caller("t", "u", str(number % 50)))

    requests = [request(number) for number in range(plan.decisions)]
    decided, submitted = [], []
    for asked in requests:
        began = time.perf_counter()
        router.decide(asked, {})
        decided.append((time.perf_counter() - began) * 1e3)
    for asked in requests:
        began = time.perf_counter()
        router.submit(asked, _nowhere)
        submitted.append((time.perf_counter() - began) * 1e3)
        local.sinks[asked.id](Finished("stop", 1, 0))
    await asyncio.sleep(0)
    return [
        Figure(
            f"decision with {plan.neighbours} neighbours",
            statistics.median(decided),
            "ms",
            at_most=MOST_DECISION_MS,
            detail=f"median of {plan.decisions:,}, p99 {percentile(decided, 0.99):.2f} ms",
        ),
        Figure(
            "a request's way through the router",
            statistics.median(submitted),
            "ms",
            at_most=MOST_DECISION_MS,
            detail=f"decision included, p99 {percentile(submitted, 0.99):.2f} ms",
        ),
        _tokens(router, local, plan),
    ]


def _tokens(router: Router, local: _Quick, plan: Plan) -> Figure:
    router.submit(Request("stream", (1,), plan.tokens + 1), _nowhere)
    sink, token = local.sinks["stream"], Token(1, b"a")
    sink(Started())
    began = time.perf_counter()
    for _ in range(plan.tokens):
        sink(token)
    spent = (time.perf_counter() - began) / plan.tokens * 1e6
    router.cancel("stream")
    return Figure("a token's way through the router", spent, "µs", at_most=MOST_TOKEN_US)


def _nowhere(event: Event) -> None:
    """Nobody reads it."""
