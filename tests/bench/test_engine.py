from __future__ import annotations

from pathlib import Path

import pytest

from node.bench import engine as module
from node.bench.bare import BareLoop
from node.bench.engine import FULL, QUICK, Idleness, Plan, Rates, Throughput, figures, unsteadiness
from node.bench.process import NodeProcess
from node.client import Client
from node.settings import Engine


def test_the_median_of_the_ratios_decides() -> None:
    rates = Rates(bare=[100.0, 200.0, 100.0], node=[90.0, 188.0, 99.0])
    (figure,) = figures({8: rates})
    assert figure.name == "8 streams, node / bare loop"
    assert figure.value == pytest.approx(0.94)
    assert figure.met is True
    assert figure.detail == "99.0 / 100.0 tokens/s; rounds 0.900 0.940 0.990"


def test_a_slow_node_misses() -> None:
    assert [figure.met for figure in figures({1: Rates([100.0], [91.0]), 4: Rates([100.0], [93.0])})] == [False, True]


def test_unsteadiness_is_that_of_the_bare_loop() -> None:
    assert unsteadiness({1: Rates([100.0, 100.0], [1.0, 50.0]), 4: Rates([80.0, 100.0], [1.0, 1.0])}) == 1 - 80 / 100


def test_idleness() -> None:
    assert Idleness().share == 0
    assert Idleness(2.0, 0.5).share == 0.25


@pytest.mark.parametrize("plan", [FULL, QUICK])
def test_plans_measure_what_is_promised(plan: Plan) -> None:
    assert list(plan.tokens) == [1, 4, 8]


@pytest.mark.model
async def test_both_sides_are_measured_in_turns(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SETTLE_S", 0.05)  # nothing is judged here
    monkeypatch.setattr(module, "_WARM_UP_TOKENS", 4)
    said: list[str] = []
    engine = Engine(context=512, threads=1)
    changes = ["engine.context=512", "engine.threads=1", f"model.name={weights}"]
    with BareLoop(engine, weights) as bare:
        async with NodeProcess(changes) as node, Client(node.url) as client:
            run = Throughput(bare, node, client, Plan(2, {1: 12, 2: 12}), said.append)
            await run.run()
    assert len(said) == run.runs == 8
    assert [line.rpartition(", ")[2] for line in said] == ["bare loop", "node"] * 2 + ["node", "bare loop"] * 2
    for rates in run.rates.values():
        assert len(rates.bare) == len(rates.node) == 2
        assert min(rates.bare + rates.node) > 0
    assert run.idle_node.wall_s > 0
    assert run.idle_bare.wall_s > 0
