from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from node.bench.disturbance import BACKGROUND, FULL, QUICK, Disturbance, Plan, Round, background_figures, figures
from node.bench.figures import Arrivals
from node.bench.process import NodeProcess
from node.client import Client
from node.errors import ContextLengthExceeded, Overloaded
from tests.support.cable import until
from tests.support.service import scripted, serving

CALM = (0.02,) * 100


def test_the_floor_counts_where_streams_are_fast() -> None:
    gap, ttft = figures([Round(CALM, (0.079,) * 100, 5.0, 10.0)])
    assert (gap.at_most, gap.value, gap.met) == (80, pytest.approx(79), True)
    assert (ttft.value, ttft.met) == (2, True)


def test_three_times_the_median_counts_where_they_are_slow() -> None:
    gap, _ = figures([Round((0.05,) * 9, (0.14,) * 9, 5.0, 5.0)])
    assert gap.at_most == pytest.approx(150)
    assert gap.met is True


def test_one_gap_of_a_hundred_may_be_long() -> None:
    assert figures([Round(CALM, (*[0.05] * 99, 9.0), 1.0, 1.0)])[0].met is True
    assert figures([Round(CALM, (*[0.05] * 98, 9.0, 9.0), 1.0, 1.0)])[0].met is False


def test_the_newcomer_is_judged_by_the_median_round() -> None:
    rounds = [Round(CALM, CALM, 1.0, among) for among in (1.5, 1.9, 9.0)]
    ttft = figures(rounds)[1]
    assert ttft.value == 1.9
    assert ttft.detail == "1.90 / 1.00 s"


@pytest.mark.parametrize("plan", [FULL, QUICK])
def test_plans_measure_what_is_promised(plan: Plan) -> None:
    assert (plan.streams, plan.prompt_tokens) == (4, 3000)


def test_a_background_prompt_may_take_its_time_but_is_answered() -> None:
    rounds = [Round(CALM, (0.079,) * 100, 5.0, among) for among in (40.0, 60.0)]
    gap, answered = background_figures(rounds, BACKGROUND)
    assert (gap.met, answered.value, answered.met) == (True, 2, True)
    assert answered.detail == "of 2; its TTFT 50.0 s, alone 5.0 s"
    assert background_figures(rounds[:1], BACKGROUND)[1].met is False


def test_all_of_the_background_plan_fits_the_cache() -> None:
    assert (BACKGROUND.streams, BACKGROUND.prompt_tokens) == (6, 6000)
    assert BACKGROUND.cells >= 6000 + 6 * 900
    assert (BACKGROUND.newcomer, BACKGROUND.streaming) == ("background", "interactive")


async def test_a_round_on_a_node(echo_process: NodeProcess) -> None:
    said: list[str] = []
    async with Client(echo_process.url) as client:
        plan = Plan(2, streams=2, calm_s=0.3, prompt_tokens=600, stream_tokens=8000)
        run = Disturbance(echo_process.url, client, plan, said.append)
        await run.run()
    assert len(said) == run.runs == 4
    for measured in run.rounds:
        assert measured.calm
        assert measured.disturbed
        assert measured.alone_s > 0
        assert measured.among_s > 0


async def test_streams_follow_each_other_and_no_gap_is_between_two(echo_process: NodeProcess) -> None:
    async with Client(echo_process.url) as client:
        plan = Plan(1, streams=2, calm_s=0.5, prompt_tokens=600, stream_tokens=50)
        run = Disturbance(echo_process.url, client, plan, lambda _: None)
        await run.run()
    (measured,) = run.rounds
    assert len(measured.calm) > 60, "more than one answer each"
    assert measured.among_s > 0


async def test_a_stream_that_fails_is_told(echo_process: NodeProcess) -> None:
    async with Client(echo_process.url) as client:
        plan = Plan(1, streams=2, calm_s=5, prompt_tokens=100, stream_tokens=10_000_000)
        with pytest.raises(ContextLengthExceeded):
            await Disturbance(echo_process.url, client, plan, lambda _: None).run()


async def test_a_stream_that_was_refused_comes_again() -> None:
    service, source = scripted("a", "b", "c")
    source.refusal = Overloaded("Later.", retry_after=1)
    async with serving(service) as url, Client(url) as client:
        run = Disturbance(url, client, replace(QUICK, stream_tokens=3), lambda _: None)
        answers: list[Arrivals] = []
        task = asyncio.create_task(run._keep_asking(0, answers))
        await until(lambda: run.refusals > 0)
        source.refusal = None
        await until(lambda: bool(answers[-1].times))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert not answers[0].times
