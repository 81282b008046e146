"""Setting against setting: the order of the turns, the figures and what they are judged by."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from node.bench import load, overload
from node.bench.figures import Arrivals
from node.bench.load import Alone, Ending, Outcome
from node.bench.overload import Overload, Plan, Setting, figures, points
from node.bench.process import NodeProcess
from node.bench.scores import Objective, Run
from node.bench.workload import DEFAULT_MIX, Arrival, Ask, Mixture
from node.client import Client
from node.errors import OperatorError
from node.generation import Level
from tests.support.service import scripted, serving

SHORT = Mixture(DEFAULT_MIX, prompt_tokens=20, answer_tokens=6)


def outcome(level: Level, *times: float, ending: Ending = "whole") -> Outcome:
    return Outcome(Ask(0, level, 100, len(times), "text"), 10.0, Arrivals([10.0 + at for at in times]), ending)


def made(*settings: Setting, plan: Plan | None = None) -> Overload:
    test = Overload(settings, 8, plan or Plan(SHORT), print, print)
    test.objective = Objective(Alone(0.030, 0.0002), gap_s=0.1)
    return test


def setting(name: str, **turns: Sequence[Outcome]) -> Setting:
    return Setting(name, "http://x", {float(rate[1:]): [Run(seen, 1.0)] for rate, seen in turns.items()})


def found(test: Overload) -> dict[str, object]:
    return {
        figure.name: (round(figure.value, 3), figure.met)
        for figure in figures(test, 62.0, lambda held, ahead: 10 + held)
    }


def test_everything_that_is_promised_is_judged_at_the_highest_rate() -> None:
    good = [outcome("critical", 0.2), outcome("interactive", 0.3), outcome("background", 9.0, 9.5)]
    bad = [outcome("critical", 0.9), outcome("interactive", ending="refused"), outcome("background", ending="refused")]
    lines = found(made(setting("as set", _1=bad, _2=good), setting("queue.policy=fifo", _1=good, _2=bad)))
    assert lines["requests that hung or failed"] == (0, True)
    assert lines["critical TTFT beyond its objective, p95"] == (-20, True)
    assert lines["interactive SLO attainment"] == (1, True)
    assert lines["background's longest wait"] == (9, True)
    assert lines["background answers"] == (1, True)
    assert lines["goodput / with queue.policy=fifo"] == (float("inf"), True)
    assert lines["as set, 1.00/s: interactive SLO attainment"] == (0, None)
    lines = found(made(setting("as set", _2=bad), setting("queue.policy=fifo", _2=good)))
    assert lines["critical TTFT beyond its objective, p95"] == (680, False)
    assert lines["interactive SLO attainment"] == (0, False)
    assert lines["background answers"] == (0, False)
    assert lines["goodput / with queue.policy=fifo"] == (0, False)


def test_only_fifo_has_a_target() -> None:
    good = [outcome("interactive", 0.3)]
    lines = found(made(setting("as set", _2=good), setting("engine.slots=4", _2=good)))
    assert lines["goodput / with engine.slots=4"] == (1, None)
    assert not any("critical" in name or "background" in name for name in lines), "nobody asked"


def test_points_of_every_setting_and_rate() -> None:
    seen = [outcome("interactive", 0.3, 0.4)]
    drawn = list(points(made(setting("as set", _1=seen, _2=seen), setting("x=1", _1=seen, _2=seen))))
    assert [(point.setting, point.rate) for point in drawn] == [("as set", 1), ("as set", 2), ("x=1", 1), ("x=1", 2)]
    assert drawn[0].ttft_p95_s == pytest.approx(0.3)
    assert drawn[0].throughput == pytest.approx(2)


@pytest.mark.parametrize(
    ("plan", "runs"),
    [
        (Plan(SHORT), 6),
        (Plan(SHORT, times=(1, 2, 3)), 14),
        (Plan(SHORT, rates=(5.0,), rounds=1), 3),
        (Plan(SHORT, closed=3), 5),
    ],
)
def test_how_often_it_tells(plan: Plan, runs: int) -> None:
    assert made(setting("a"), setting("b"), plan=plan).runs == runs


def test_a_trace_and_an_endless_supply() -> None:
    rows = [Arrival(at, 100, 10) for at in range(100)]
    plan = Plan(SHORT, rows=rows, seconds=5)
    assert len(plan.asks(4.0, 1)) == pytest.approx(20, abs=1)
    supply = plan.endless(1)
    texts = [next(supply).text for _ in range(120)]
    assert len(set(texts)) == 120


async def test_two_settings_take_turns(echo_process: NodeProcess) -> None:
    said: list[str] = []
    settings = [Setting("as set", echo_process.url), Setting("other", echo_process.url)]
    plan = Plan(SHORT, seconds=0.4, rounds=2, probe_s=0.4, times=(0.2,))
    test = Overload(settings, 8, plan, said.append, lambda *_: None)
    await test.run()
    assert len(said) == test.runs == 6
    assert said[0] == "prompts on the idle node"
    assert [line.rpartition(", ")[2] for line in said[2:]] == ["as set", "other"] * 2
    assert test.objective.alone.base_s > 0
    assert any("requests/s of this kind" in fact for fact in test.facts)
    lines = {figure.name: figure for figure in overload.figures(test, 62.0, lambda held, ahead: 60.0)}
    assert lines["requests that hung or failed"].met


async def test_a_node_that_does_nothing_has_no_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "PATIENCE_S", 0.3)
    service, source = scripted(0.05, "a", asyncio.Event(), slots=9)
    async with serving(service) as url:
        test = Overload([Setting("as set", url)], 2, Plan(SHORT, probe_s=0.1), lambda _: None, lambda *_: None)
        with pytest.raises(OperatorError, match="less than 2 requests"):
            async with Client(url) as client:
                await test._capacity(client)
    assert source.busy == 0


async def test_a_closed_loop_takes_turns_too(echo_process: NodeProcess) -> None:
    plan = Plan(SHORT, closed=2, seconds=0.3, rounds=1)
    test = Overload([Setting("as set", echo_process.url)], 8, plan, lambda _: None, lambda *_: None)
    await test.run()
    (runs,) = test.settings[0].turns.values()
    assert len(runs[0].outcomes) > 2
