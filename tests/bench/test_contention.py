"""Neighbours come and go, and what they cost is told from arrivals alone."""

from __future__ import annotations

import math
import time

import psutil
import pytest

from node.bench.contention import Contended, Neighbours, Plan, Round, figures, recovered_after
from node.bench.process import NodeProcess
from node.client import Client


def arrivals(*phases: tuple[float, float]) -> list[float]:
    """Arrivals from 100.0 on: so many tokens/s for so many seconds, phase by phase."""
    times, now = [], 100.0
    for rate, seconds in phases:
        end = now + seconds
        while now < end - 1e-9:
            now += 1 / rate
            times.append(now)
    return times


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        ([(50, 5)], 0.0),
        ([(10, 3), (50, 4)], 3.0),
        ([(50, 0.5), (10, 2), (50, 4)], 2.5),  # half a second is not a whole one
        ([(10, 6)], math.inf),
        ([(10, 6), (50, 0.8)], math.inf),  # it ended too soon to tell
    ],
)
def test_recovery_is_a_whole_second_at_the_old_rate(phases: list[tuple[float, float]], expected: float) -> None:
    seen = recovered_after(arrivals(*phases), 100.0, 0.9 * 50)
    assert seen == expected or abs(seen - expected) < 0.25


def test_what_came_before_does_not_count() -> None:
    times = [*(90 + number / 50 for number in range(400)), *arrivals((10, 3), (50, 4))]
    assert recovered_after(times, 100.0, 45) == pytest.approx(3.0, abs=0.25)


def test_both_promises() -> None:
    share, back = figures([Round(50, 95, 30, 2.0), Round(50, 95, 26, 6.5), Round(50, 95, 20, 1.0)])
    assert (share.value, share.met) == (pytest.approx(0.52), True)
    assert (back.value, back.met) == (6.5, True)
    share, back = figures([Round(50, 95, 1, math.inf)])
    assert (share.met, back.met) == (False, False)


def test_neighbours_are_busy_and_then_gone() -> None:
    with Neighbours(2) as neighbours:
        processes = [psutil.Process(process.pid) for process in neighbours._processes]
        deadline = time.monotonic() + 20
        while any(sum(process.cpu_times()[:2]) < 0.2 for process in processes) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert all(sum(process.cpu_times()[:2]) >= 0.2 for process in processes)
    assert not any(process.is_running() for process in processes)


async def test_a_round_on_a_node(echo_process: NodeProcess) -> None:
    said: list[str] = []
    async with Client(echo_process.url) as client:
        run = Contended(client, client, 1, Plan(1, 0.3, 0.3, 0.3), said.append)
        await run.run()
    assert len(said) == run.runs == 4
    assert run.rounds[0].one > 0
    assert run.rounds[0].contended > 0
