"""Who got what was promised: counted by hand."""

from __future__ import annotations

import math

import pytest

from node.bench.figures import Arrivals
from node.bench.load import Alone, Ending, Outcome
from node.bench.scores import (
    Objective,
    Run,
    attainment,
    gap,
    goodput,
    level_figures,
    longest_held_s,
    most_at_once,
    problems,
    throughput,
    ttft,
)
from node.bench.workload import Ask
from node.generation import Level

# 100 tokens of prompt take 50 ms alone, so interactive's first text is due after 300 + 2 x 50 ms.
OBJECTIVE = Objective(Alone(0.030, 0.0002), gap_s=0.1)


def outcome(
    *times: float, level: Level = "interactive", ending: Ending = "whole", due: float = 10.0, tokens: int = 0
) -> Outcome:
    arrivals = Arrivals([due + at for at in times], tokens)
    return Outcome(Ask(0, level, 100, len(times), "text"), due, arrivals, ending)


@pytest.mark.parametrize(
    ("level", "promised"),
    [("critical", 0.220), ("interactive", 0.400), ("standard", 0.900), ("background", None)],
)
def test_the_objective_is_the_longest_wait_and_the_reading(level: Level, promised: float | None) -> None:
    assert OBJECTIVE.ttft_s(outcome(0.1, level=level)) == (promised if promised is None else pytest.approx(promised))


@pytest.mark.parametrize(
    ("seen", "attained", "good"),
    [
        (outcome(0.39, 0.49, 0.59), True, 3),
        (outcome(0.39, 0.45, 0.585), True, 3),
        (outcome(0.41, 0.45, 0.5), False, 2),  # the first came too late, the others by the time they were due
        (outcome(0.1, 0.3, 0.6), False, 3),  # a slow pace, but early enough to be in time
        (outcome(0.39, 0.59, 0.79), False, 1),
        (outcome(0.1), True, 1),
        (outcome(), True, 0),  # an answer without any text
        (outcome(0.1, 0.2, ending="failed"), False, 0),
        (outcome(0.1, 0.2, ending="hung"), False, 0),
        (outcome(ending="refused"), False, 0),
        (outcome(ending="expired"), False, 0),
        (outcome(50, 90, level="background"), True, 2),
        (outcome(50, 90, level="background", ending="hung"), False, 0),
        (outcome(0.1, 0.2, tokens=4), True, 4),  # two tokens a piece
    ],
)
def test_attained_and_in_time(seen: Outcome, attained: bool, good: float) -> None:
    assert OBJECTIVE.attained(seen) is attained
    assert OBJECTIVE.good_tokens(seen) == good


def test_how_late_the_first_text_was() -> None:
    assert OBJECTIVE.excess_s(outcome(0.5)) == pytest.approx(0.1)
    assert OBJECTIVE.excess_s(outcome(0.1)) == pytest.approx(-0.3)
    assert OBJECTIVE.excess_s(outcome(0.1, level="background")) is None
    assert OBJECTIVE.excess_s(outcome(ending="refused")) is None


def test_rates_are_over_the_time_that_it_took() -> None:
    seen = [outcome(0.1, 0.2), outcome(0.1, 0.9, due=18.0), outcome(ending="refused", due=19.0)]
    assert throughput(Run(seen, 5.0)) == pytest.approx(4 / 8.9)
    assert throughput(Run(seen, 20.0)) == pytest.approx(4 / 20)
    assert goodput(Run(seen, 20.0), OBJECTIVE) == pytest.approx(3 / 20)
    assert throughput(Run([], 5.0)) == 0


def test_shares_and_percentiles() -> None:
    seen = [outcome(0.1, 0.2), outcome(0.3, 0.6), outcome(0.5, 0.55), outcome(ending="refused")]
    assert attainment(seen, OBJECTIVE) == 0.25
    assert math.isnan(attainment([], OBJECTIVE))
    assert ttft(seen, 0.5) == pytest.approx(0.3)
    assert gap(seen, 1.0) == pytest.approx(0.3)
    assert math.isnan(ttft([], 0.5))
    assert math.isnan(gap([outcome(0.1)], 0.5))


def test_what_hung_or_failed_is_counted_and_named() -> None:
    broken = outcome(ending="failed")
    broken.why = "EngineFailed: no"
    figure = problems([Run([outcome(0.1), broken], 1), Run([outcome(ending="hung"), outcome(ending="refused")], 1)])
    assert (figure.value, figure.met, figure.detail) == (2, False, "EngineFailed: no; no end")
    assert problems([Run([outcome(0.1), outcome(ending="expired")], 1)]).met


def test_lines_by_level() -> None:
    seen = [outcome(0.1, 0.2), outcome(0.5, 0.6), outcome(ending="refused"), outcome(9, 9.1, level="background")]
    lines = level_figures("as set", [Run(seen, 10)], OBJECTIVE)
    assert [line.name for line in lines] == [
        "as set: interactive SLO attainment",
        "as set: background SLO attainment",
        "as set: goodput",
    ]
    assert lines[0].value == pytest.approx(1 / 3)
    assert lines[0].detail == (
        "3 asked: 2 whole, 1 refused, 0 expired, 0 failed, 0 hung; TTFT p50 / p95 100 / 500 ms, "
        "gaps p50 / p99 100 / 100 ms"
    )
    assert lines[2].value == pytest.approx(0.4)
    assert lines[2].detail == "of 0.6 tokens/s in all"


def test_the_longest_time_in_a_slot() -> None:
    runs = [Run([outcome(9, 9.4), outcome(ending="refused")], 1), Run([outcome(1, 4)], 1)]
    assert longest_held_s(runs, OBJECTIVE) == pytest.approx(3.1)
    assert longest_held_s([], OBJECTIVE) == 0


def test_how_many_were_in_the_node_together() -> None:
    first, second, third = (outcome(0.5, 1.0, due=due) for due in (0.0, 0.9, 2.0))
    refused = outcome(ending="refused")
    assert most_at_once([Run([first, second, third, refused], 3)]) == 2
    assert most_at_once([Run([refused], 3)]) == 0
