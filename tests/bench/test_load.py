"""Clients that come when they come: against a node that answers, refuses, and one that never ends."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from node.bench import load
from node.bench.figures import Arrivals
from node.bench.load import Alone, Outcome, alone, capacity, closed_loop, open_loop
from node.bench.process import NodeProcess
from node.bench.workload import Ask
from node.client import Client
from node.errors import EngineFailed, Expired, Overloaded
from node.generation import Level, Request, Sink
from tests.server.wire import until
from tests.support.service import ScriptedService, ScriptedSource, scripted, serving


def ask(at: float = 0.0, tokens: int = 4, level: Level = "standard") -> Ask:
    return Ask(at, level, 10, tokens, "Why?")


async def test_open_loop_sends_when_due_whatever_became_of_the_others() -> None:
    gate = asyncio.Event()
    service, source = scripted("a", gate, "b", slots=9)
    told: list[float] = []
    async with serving(service) as url, Client(url) as client:
        asks = [ask(0.2, level="critical"), ask(0.0), ask(0.1)]
        running = asyncio.create_task(open_loop(client, asks, lambda at, _: told.append(at)))
        await until(lambda: len(source.submitted) == 3)
        gate.set()
        outcomes = await running
    assert [one.ending for one in outcomes] == ["whole"] * 3
    assert [one.ask.at for one in outcomes] == told == [0.0, 0.1, 0.2]
    assert [request.level for request in source.submitted] == ["standard", "standard", "critical"]
    dues = [one.due - outcomes[0].due for one in outcomes]
    assert dues == pytest.approx([0, 0.1, 0.2])
    assert all(one.ttft_s is not None and one.ttft_s > 0 for one in outcomes)


@pytest.mark.parametrize(
    ("step", "ending"),
    [
        (EngineFailed("It broke."), "failed"),
        (Overloaded("Full.", retry_after=1), "refused"),
        (Expired("Too late."), "expired"),
    ],
)
async def test_every_kind_of_end(step: EngineFailed, ending: str) -> None:
    service, _ = scripted(step)
    async with serving(service) as url, Client(url) as client:
        (outcome,) = await open_loop(client, [ask()], lambda *_: None)
    assert outcome.ending == ending
    assert step.message in outcome.why
    assert outcome.ttft_s is None


async def test_what_never_ends_is_said_to_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "PATIENCE_S", 0.2)
    service, source = scripted("a", asyncio.Event())
    async with serving(service) as url, Client(url) as client:
        (outcome,) = await open_loop(client, [ask()], lambda *_: None)
        assert outcome.ending == "hung"
        assert len(outcome.arrivals.times) == 1
        await source.cancel_seen.wait()


class CountingSource(ScriptedSource):
    """Notes how many run at the same time."""

    most = 0

    def submit(self, request: Request, sink: Sink) -> None:
        super().submit(request, sink)
        self.most = max(self.most, self.busy)


async def test_a_closed_loop_keeps_so_many_running_and_leaves_in_time() -> None:
    source = CountingSource(("a", 0.01, "b"), slots=50)
    async with serving(ScriptedService(source)) as url, Client(url) as client:
        outcomes = await closed_loop(client, itertools.repeat(ask()), 3, 0.4)
    assert source.most == 3
    assert len(outcomes) > 6
    assert sum(one.ending == "hung" for one in outcomes) <= 3, "those that ran when the time was up"


async def test_a_closed_loop_ends_with_its_questions() -> None:
    service, _ = scripted("a")
    async with serving(service) as url, Client(url) as client:
        outcomes = await closed_loop(client, [ask()] * 5, 2, 10)
    assert [one.ending for one in outcomes] == ["whole"] * 5


def test_capacity_counts_parts() -> None:
    half = Outcome(ask(tokens=4), 0.0, Arrivals([1.0, 2.0]), "hung")
    assert capacity([Outcome(ask(), 0.0, Arrivals([1.0]), "whole"), half, Outcome(ask(), 0.0)], 3.0) == 0.5


async def test_reading_is_priced_by_short_and_long_prompts() -> None:
    async with NodeProcess(["engine.kind=echo"]) as node, Client(node.url) as client:
        began = time.perf_counter()
        found = await alone(client)
        assert time.perf_counter() - began > found.ttft_s(512)
    assert found.base_s >= 0
    assert found.ttft_s(512) >= found.ttft_s(32) > 0


def test_what_reading_costs() -> None:
    assert Alone(0.02, 0.001).ttft_s(300) == pytest.approx(0.32)
