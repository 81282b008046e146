"""Threads are set in one place, shared with what is read aside, and a change is told once in a while."""

from __future__ import annotations

import logging

import pytest

from node.engine.cores import Cores


class Steps:
    """What is needed of a context."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def use_threads(self, threads: int) -> None:
        self.threads = threads


def cores(threads: int, *, adapts: bool = True) -> tuple[Cores, Steps]:
    steps = Steps(threads)
    return Cores(steps, adapts=adapts), steps  # type: ignore[arg-type]


def work(cores: Cores, steps: Steps, begin: float, seconds: float, busy: bool) -> float:
    """Steps of one token, a hundred times as slow with several threads beside busy neighbours; gives the time."""
    now = begin
    while now < begin + seconds:
        cores.undivided(streams=True)
        took = (1.0 if steps.threads > 1 else 0.02) if busy else 0.02 / steps.threads
        now += took
        cores.observe(1, 0, took, now)
    return now


@pytest.mark.parametrize(("threads", "steps_get", "beside"), [(1, 1, 1), (2, 1, 1), (5, 3, 2), (8, 4, 4)])
def test_what_is_read_aside_gets_half_and_all_when_nothing_streams(threads: int, steps_get: int, beside: int) -> None:
    shared, steps = cores(threads)
    assert shared.divided(streams=True) == beside
    assert steps.threads == steps_get
    assert shared.divided(streams=False) == threads
    shared.undivided(streams=True)
    assert steps.threads == threads


def test_it_follows_contention_and_says_so_but_not_often(caplog: pytest.LogCaptureFixture) -> None:
    shared, steps = cores(4)
    now = work(shared, steps, 100.0, 5, busy=False)
    assert shared.threads == 4
    with caplog.at_level(logging.INFO, logger="node.engine.cores"):
        for _ in range(3):
            now = work(shared, steps, now, 5, busy=True)
            assert shared.threads == 1
            assert shared.divided(streams=True) == 1
            now = work(shared, steps, now, 15, busy=False)
            assert shared.threads == 4
    told = [(record.message, record.threads) for record in caplog.records]  # type: ignore[attr-defined]
    assert told[0] == ("others want the cores", 1)
    assert told[1][0] == "the cores are free again"
    assert len(told) <= 6


def test_steps_beside_something_that_is_read_aside_do_not_count() -> None:
    shared, steps = cores(2)
    now = work(shared, steps, 100.0, 5, busy=False)
    for _ in range(50):
        shared.divided(streams=True)
        now += 1.0
        shared.observe(1, 0, 1.0, now)
    assert shared.threads == 2


def test_where_it_cannot_help_the_number_stays() -> None:
    fixed, steps = cores(4, adapts=False)
    now = 0.0
    for _ in range(100):
        now += 1.0
        fixed.observe(1, 0, 1.0, now)
        fixed.undivided(streams=True)
    assert fixed.threads == steps.threads == 4


def test_prompts_have_a_number_of_their_own() -> None:
    apart, steps = cores(4)
    now = work(apart, steps, 100.0, 5, busy=False)
    for busy in (False, True):
        for _ in range(40):
            apart.undivided(streams=False)
            took = 0.3 if busy and steps.threads > 1 else 0.1 / steps.threads
            now += took
            apart.observe(0, 128, took, now)
            apart.observe(3, 128, 99.0, now)  # of both kinds: says nothing
    apart.undivided(streams=False)
    assert steps.threads == 1
    apart.undivided(streams=True)
    assert steps.threads == apart.threads == 4


def test_a_limit_holds_until_it_is_lifted() -> None:
    shared, steps = cores(8)
    shared.limit(3)
    shared.undivided(streams=True)
    assert (shared.threads, steps.threads) == (3, 3)
    assert shared.divided(streams=True) == 1
    assert steps.threads == 2
    assert work(shared, steps, 100.0, 60, busy=False)
    assert shared.threads == 3  # quiet does not lift it
    shared.limit(None)
    shared.undivided(streams=False)
    assert (shared.threads, steps.threads) == (8, 8)


@pytest.mark.parametrize(("most", "threads"), [(0, 4), (1, 1), (99, 4), (None, 4)])
def test_limits_that_mean_all(most: int | None, threads: int) -> None:
    shared, _ = cores(4)
    shared.limit(most)
    assert shared.threads == threads


def test_a_limit_where_nothing_adapts() -> None:
    shared, steps = cores(4, adapts=False)
    shared.limit(2)
    shared.undivided(streams=True)
    assert (shared.threads, steps.threads) == (2, 2)
    shared.limit(None)
    assert steps.threads == 4


def test_contention_under_a_limit() -> None:
    shared, steps = cores(8)
    shared.limit(4)
    now = work(shared, steps, 100.0, 5, busy=False)
    now = work(shared, steps, now, 5, busy=True)
    assert shared.threads == 1
    work(shared, steps, now, 20, busy=False)
    assert shared.threads == 4
