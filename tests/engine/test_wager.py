"""How many guesses pay, on machines that exist only here."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.engine.wager import LONGEST, MARGIN, StepLine, how_many


def learned(cost: Callable[[int], float], sizes: tuple[int, ...] = (1, 2, 4, 8)) -> StepLine:
    line = StepLine()
    for _ in range(20):
        for size in sizes:
            line.observe(size, cost(size))
    return line


def linear(base: float, each: float) -> Callable[[int], float]:
    return lambda tokens: base + each * tokens


def test_a_line_is_found_again_also_under_noise() -> None:
    draw = random.Random(3)
    line = StepLine()
    for _ in range(300):
        size = draw.choice([1, 1, 1, 2, 4, 8, 16])
        line.observe(size, (4.2 + 3.1 * size) * draw.uniform(0.9, 1.1))
    for size in (1, 4, 16):
        assert line.seconds(size) == pytest.approx(4.2 + 3.1 * size, rel=0.1)


def test_it_follows_a_machine_that_changes() -> None:
    line = learned(linear(4, 3))
    for _ in range(40):
        for size in (1, 2, 4, 8):
            line.observe(size, 12 + 9 * size)
    assert line.seconds(4) == pytest.approx(48, rel=0.1)


def test_one_number_of_tokens_says_nothing_of_others() -> None:
    line = learned(linear(4, 3), sizes=(2,))
    assert line.seconds(2) == pytest.approx(10)
    assert line.seconds(9) == pytest.approx(10 * (9 + 1.5) / (2 + 1.5))


def test_one_slow_step_counts_twice_at_most() -> None:
    line = learned(linear(4, 3))
    before = line.seconds(1)
    line.observe(1, 1e9)
    assert line.seconds(1) < 1.1 * before


@given(
    steps=st.lists(st.tuples(st.integers(1, 32), st.floats(1e-4, 10.0)), max_size=60),
    sizes=st.tuples(st.integers(1, 128), st.integers(1, 128)),
)
def test_more_tokens_never_seem_cheaper_and_nothing_seems_free(
    steps: list[tuple[int, float]], sizes: tuple[int, int]
) -> None:
    line = StepLine()
    for tokens, seconds in steps:
        line.observe(tokens, seconds)
    few, many = sorted(sizes)
    assert 0 < line.seconds(few) <= line.seconds(many) * (1 + 1e-9)


def test_sure_guesses_are_taken_as_many_as_pay() -> None:
    # Q8_0 on two cores, as measured: a step of one token 7.3 ms, of eight 29 ms.
    line = learned(linear(4.2, 3.1))
    assert how_many([0.99], line, 100)[0] >= 8
    assert 1 <= how_many([0.8], line, 100)[0] <= 4
    assert how_many([0.3], line, 100) == [0]
    assert how_many([0.99], line, 3) == [3]
    assert how_many([0.99], line, 0) == [0]


def test_where_tokens_cost_what_steps_cost_nothing_is_wagered() -> None:
    assert how_many([0.95], learned(linear(0.01, 3.0)), 100) == [0]


def test_where_they_are_free_all_are_taken() -> None:
    assert how_many([0.9], learned(linear(5.0, 0.0)), 100) == [LONGEST]


def test_many_streams_share_and_the_surest_come_first() -> None:
    counts = how_many([0.99, 0.0, 0.7, 0.2], learned(linear(10.0, 1.0)), 100)
    assert counts[0] > counts[2] > counts[3]
    assert counts[1] == 0
    crowded = how_many([0.9] * 24, learned(linear(4.2, 3.1)), 100)
    assert sum(crowded) == 0, "the batch is full enough already"


def test_before_anything_is_known_a_promising_guess_is_tried() -> None:
    assert how_many([0.8], StepLine(), 100)[0] >= 1


def test_what_did_not_pay_is_tried_again_but_seldom() -> None:
    """On a machine where a token more costs a whole step more, with guesses that are always right half of the time."""
    draw, line = random.Random(4), StepLine()
    spent, tokens = 0.0, 0
    for _ in range(3000):
        count = how_many([0.6], line, 100)[0]
        right = 0
        while right < count and draw.random() < 0.6:
            right += 1
        seconds = 1.0 + 0.95 * count
        line.observe(1 + count, seconds)
        spent, tokens = spent + seconds, tokens + 1 + right
    assert tokens / spent > 0.98


@given(
    chances=st.lists(st.floats(0, 1), min_size=1, max_size=8),
    base=st.floats(0.1, 10),
    each=st.floats(0.01, 10),
    most=st.integers(0, 40),
)
def test_it_is_the_best_number_or_none(chances: list[float], base: float, each: float, most: int) -> None:
    line = learned(linear(base, each))
    counts = how_many(chances, line, most)
    assert sum(counts) <= most
    assert max(counts) <= LONGEST

    def rate(counts: list[int]) -> float:
        gain = sum(sum(chance**n for n in range(1, count + 1)) for chance, count in zip(chances, counts, strict=True))
        return (len(chances) + gain) / line.seconds(len(chances) + sum(counts))

    none = rate([0] * len(chances))
    assert not sum(counts) or rate(counts) >= MARGIN * none * (1 - 1e-9)
    for stream in range(len(chances)):
        more = [count + (index == stream) for index, count in enumerate(counts)]
        if sum(more) <= most and more[stream] <= LONGEST:
            assert rate(more) <= max(rate(counts), MARGIN * none) * (1 + 1e-9)


def test_a_step_stays_short_whatever_guesses_would_bring() -> None:
    """Six streams of sure guesses: a step of thirty-two tokens would bring most, and hold up everybody."""
    line = StepLine()
    for tokens in (1, 6, 12, 24, 32) * 20:
        line.observe(tokens, 0.005 + 0.005 * tokens)
    sure = [0.99] * 6
    assert sum(how_many(sure, line, 26)) > 20
    short = sum(how_many(sure, line, 26, step_s=0.062))
    assert 0 < short
    assert line.seconds(6 + short) <= 0.0701, "twice as long as streaming alone"
    assert how_many([0.99], line, 31, step_s=0.062) == how_many([0.99], line, 31), "one alone holds up nobody"


def test_before_anything_was_seen_there_is_no_time_to_keep() -> None:
    assert how_many([0.99] * 2, StepLine(), 31, step_s=0.001) == how_many([0.99] * 2, StepLine(), 31)
