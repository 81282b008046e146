"""The bar's cells and their arithmetic."""

from __future__ import annotations

import random

import pytest

from node.bench.channel import Conditions
from node.bench.link import Cell, above_floor, added, cells, figures, interval, long_gaps, measure, quick, stall
from node.bench.linkworld import Outcome, Reply, Talk


def reply(*delays: float, gap: float = 0.05) -> Reply:
    made = [i * gap for i in range(len(delays))]
    return Reply(made, [at + delay for at, delay in zip(made, delays, strict=True)], True)


def test_a_stall_is_what_a_reader_waits_beyond_the_models_pace() -> None:
    assert stall(reply(0.1, 0.1, 0.1, 0.1, 0.1)) == 0
    assert stall(reply(0.1, 0.12, 0.1, 0.1, 0.1)) == pytest.approx(10)
    assert stall(reply(0.1, 0.102, 0.1, 0.1, 0.1)) == 0, "less than is noticed"


def test_long_gaps_are_those_that_the_model_did_not_make() -> None:
    assert long_gaps(reply(0.1, 0.1, 0.1)) == 0
    assert long_gaps(reply(0.0, 0.06, 0.01, gap=0.05)) == pytest.approx(110)
    assert long_gaps(reply(0.0, 0.0, 0.0, gap=0.5)) == 0


def test_added_delay_is_beyond_the_paths_own() -> None:
    outcome = Outcome((reply(0.1, 0.11),), 0.0, 0.1)
    assert added(outcome) == pytest.approx([0, 10])


def test_an_interval_holds_the_mean() -> None:
    rng = random.Random(1)
    values = [rng.gauss(5, 1) for _ in range(40)]
    low, high = interval(values, random.Random(2))
    assert low < sum(values) / 40 < high
    assert high - low < 1.5


def test_the_cells_are_the_bars() -> None:
    assert {cell.number for cell in cells()} == {1, 2, 3, 5, 6}
    assert {cell.number for cell in quick()} == {1, 3}
    assert len({cell.name for cell in cells()}) == len(cells())


def test_a_cells_figures_and_targets() -> None:
    cell = Cell(1, "x", Conditions(rtt=0.05, loss=0.05), Talk(50, replies=4, chunks=60), 1.5, 1.0, 10, None, 15)
    figures, stalls = measure(cell, 3)
    assert [figure.name for figure in figures] == [
        "1 · x: whole",
        "1 · x: stall ratio",
        "1 · x: in gaps > 100 ms",
        "1 · x: p99 added delay",
        "1 · x: last chunk, p95",
    ]
    assert figures[0].value == 100
    assert set(stalls) == {"link", "eloquent", "eloquent with our timeout", "XOR 3:1", "floor"}


def test_bursts_are_judged_together_and_against_eloquent() -> None:
    (good,) = [above_floor([{"link": 1.0, "floor": 0.5}, {"link": 3.0, "floor": 1.6}])]
    assert good.value == pytest.approx(0.95)
    assert good.met
    assert not above_floor([{"link": 2.0, "floor": 0.5}]).met
    cell = Cell(3, "x", Conditions(loss=0.1, burst_s=0.06), Talk(20, 2, 5), bursts=True)
    slow, quick_ = (Outcome((reply(0.1, wait, 0.1, 0.1, 0.1),) * 2, 1.0, 0.1) for wait in (0.14, 0.1))
    others = {"eloquent": quick_, "floor": quick_}
    judged = {
        name: next(figure for figure in figures(cell, {"link": one, **others}, 2) if "stall" in figure.name)
        for name, one in (("slow", slow), ("quick", quick_))
    }
    assert judged["slow"].met is False
    assert judged["quick"].met is True
