"""Threads give way to neighbours and come back, on a machine that exists only here."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.engine.contention import LONGEST_PAUSE_S, Contention

ONE_CORE_S = 0.02  # a step of one token on one dedicated core
QUIET_WITHIN_S = 10.0

Cost = Callable[[int, int, int], float]  # threads, cores, busy neighbours -> how many times slower than undisturbed


def spinning(threads: int, cores: int, busy: int) -> float:
    """llama.cpp as it is: whoever shares a core while others wait at the barrier costs a hundred times as much."""
    if threads + busy <= cores:
        return 1.0
    return 100.0 if threads > 1 else 1 + busy / cores


def limited(threads: int, cores: int, busy: int) -> float:
    """As it was measured here with a limit on spinning: two threads beside two busy loops are four times as slow."""
    return min(4.0, spinning(threads, cores, busy))


def sleeping(threads: int, cores: int, busy: int) -> float:
    """A library whose threads sleep at barriers: everybody just gets a fair share."""
    return max(1.0, (threads + busy) / cores)


@dataclass
class Machine:
    """Runs steps with as many threads as the controller says."""

    cores: int
    cost: Cost = spinning
    busy: int = 0
    now: float = 100.0
    tokens: int = 0
    control: Contention = field(init=False)

    def __post_init__(self) -> None:
        self.control = Contention(self.cores)

    def step(self, work: int = 1, growth: float = 1.0) -> float:
        threads = self.control.threads
        seconds = ONE_CORE_S * (1 + 0.2 * work) / threads * self.cost(threads, self.cores, self.busy) * growth
        self.now += seconds
        self.tokens += work
        self.control.observe(work, seconds, self.now)
        return seconds

    def run(self, seconds: float, works: Iterator[int] | None = None) -> float:
        """Run so long; gives tokens/s."""
        begin, tokens = self.now, self.tokens
        while self.now < begin + seconds:
            self.step(next(works) if works else 1)
        return (self.tokens - tokens) / (self.now - begin)


def mixed() -> Iterator[int]:
    """How many tokens a step has changes all the time, as it does with drafts and newcomers."""
    while True:
        yield from (1, 4, 2, 8, 1, 1, 3)


@pytest.mark.parametrize("cores", [2, 3, 4, 6, 16])
def test_a_quiet_machine_uses_all_threads_and_loses_next_to_nothing(cores: int) -> None:
    machine = Machine(cores)
    full = cores / (ONE_CORE_S * 1.2)
    assert machine.run(30) > 0.97 * full
    assert machine.control.threads == cores


@pytest.mark.parametrize("cores", [2, 4, 16])
@pytest.mark.parametrize("works", [None, mixed])
@pytest.mark.parametrize(("cost", "share"), [(limited, 0.45), (spinning, 0.36)])
def test_with_a_neighbour_on_every_core_half_a_core_is_left_but_for_the_trials(
    cores: int, works: Callable[[], Iterator[int]] | None, cost: Cost, share: float
) -> None:
    dedicated = Machine(1)
    one = dedicated.run(30, works() if works else None)
    machine = Machine(cores, cost)
    machine.run(5, works() if works else None)
    machine.busy = cores
    contended = machine.run(60, works() if works else None)
    assert contended >= share * one
    assert cost is limited or machine.control.settled == 1


def test_untreated_it_would_be_a_hundredth() -> None:
    assert spinning(2, 2, 2) / 2 == pytest.approx(50 * spinning(1, 1, 0))


@pytest.mark.parametrize("cores", [2, 4, 16])
@pytest.mark.parametrize("contended_s", [1.0, 7.0, 60.0])
def test_it_is_back_at_full_speed_soon_after_it_is_quiet(cores: int, contended_s: float) -> None:
    machine = Machine(cores)
    machine.run(5)
    machine.busy = cores
    machine.run(contended_s)
    machine.busy = 0
    quiet = machine.now
    while machine.control.threads != cores or machine.control._trial:
        machine.step()
    assert machine.now - quiet < QUIET_WITHIN_S


def test_some_neighbours_leave_some_threads() -> None:
    machine = Machine(16)
    machine.run(5)
    machine.busy = 8
    machine.run(30)
    assert machine.control.settled == 8


def test_where_threads_sleep_at_barriers_they_are_kept() -> None:
    machine = Machine(2, cost=sleeping)
    machine.run(5)
    machine.busy = 1
    machine.run(30)
    assert machine.control.settled == 2, "one thread would be slower"


def test_a_node_that_starts_on_a_busy_machine_finds_out() -> None:
    machine = Machine(4, busy=4)
    machine.run(10)
    assert machine.control.settled == 1


def test_steps_that_grow_slowly_with_the_context_cost_one_trial_each_time_they_double() -> None:
    machine, tried = Machine(2), 0
    for number in range(20_000):
        before = machine.control._trial
        machine.step(growth=1 + number / 2500)  # up to nine times
        tried += machine.control._trial is not None and before is None
    assert machine.control.settled == 2
    assert tried <= 6


def test_one_slow_step_changes_nothing_for_long() -> None:
    machine = Machine(2)
    machine.run(5)
    machine.busy = 2
    machine.step()
    machine.busy = 0
    machine.run(2)
    assert machine.control.threads == 2


def test_failed_climbs_get_rarer_but_never_too_rare() -> None:
    machine = Machine(2)
    machine.run(2)
    machine.busy = 2
    tried: list[float] = []
    while machine.now < 200:
        before = machine.control.threads
        machine.step()
        if machine.control.threads > before:
            tried.append(machine.now)
    waits = [after - before for before, after in itertools.pairwise(tried)]
    assert waits == sorted(waits) or max(waits) - waits[-1] < 1
    assert LONGEST_PAUSE_S <= waits[-1] < LONGEST_PAUSE_S + 2


def test_a_trial_does_not_outlast_a_pause_in_the_work() -> None:
    machine = Machine(4)
    machine.run(2)
    machine.busy = 4
    while machine.control._trial is None:
        machine.step()
    machine.now += 3600
    machine.busy = 0
    machine.step()
    assert machine.control.threads == machine.control.settled


def test_prompts_count_by_the_token() -> None:
    control, now = Contention(2, suspicious=False), 0.0
    for tokens in (512, 128, 256, 64) * 40:
        seconds = tokens * 0.001 * (1 if control.threads == 2 else 2)
        now += seconds
        control.observe(0, seconds / tokens, now, weight=tokens)
        assert control.threads == 2, "nothing was tried unasked"
    for tokens in (512, 128, 256, 64) * 40:
        seconds = tokens * (0.02 if control.threads == 2 else 0.003)
        now += seconds
        control.observe(0, seconds / tokens, now, weight=tokens)
    assert control.settled == 1


def test_one_thread_has_nothing_to_decide() -> None:
    machine = Machine(1, busy=3)
    machine.run(10)
    assert machine.control.threads == 1
    assert not machine.control._least


@settings(max_examples=40)
@given(
    cores=st.integers(1, 12),
    phases=st.lists(st.tuples(st.integers(0, 12), st.floats(0.01, 4.0), st.booleans()), max_size=4),
)
def test_whatever_neighbours_do_the_number_makes_sense_and_quiet_brings_all_back(
    cores: int, phases: list[tuple[int, float, bool]]
) -> None:
    machine = Machine(cores)
    for busy, seconds, pause in phases:
        machine.busy = busy
        begin = machine.now
        while machine.now < begin + seconds:
            machine.step()
            assert 1 <= machine.control.threads <= cores
        machine.now += 100 * pause
    machine.busy = 0
    machine.run(QUIET_WITHIN_S)
    while machine.control._trial:
        machine.step()
    assert machine.control.threads == cores
