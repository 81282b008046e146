"""The ladder: every transition of its table, hysteresis, rungs that cannot be done, and what each rung does."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.admission import ladder
from node.admission.ladder import OPTIONAL, RUNGS, TABLE, Effect, Ladder, Rung, Step, effect, stress
from node.generation import LEVELS

PAIRS = list(itertools.pairwise(RUNGS))


def standing_on(rung: Rung) -> Ladder:
    """One that went up step by step; the time is then 0 again."""
    steps = Ladder()
    now = -1000.0
    while steps.rung != rung:
        steps.update(math.inf, OPTIONAL, now)
        now += 1
    return steps


def test_the_printed_table_is_the_table() -> None:
    rows = [line.split() for line in (ladder.__doc__ or "").splitlines() if line.split() and line.split()[0] in RUNGS]
    assert [row[0] for row in rows] == list(RUNGS)
    for row in rows[1:]:
        condition = TABLE[row[0]]  # type: ignore[index]
        assert (float(row[1]), float(row[2])) == (condition.up, condition.down)


def test_conditions_leave_a_gap_between_up_and_down_and_rise() -> None:
    for lower, upper in PAIRS[1:]:
        assert TABLE[lower].up < TABLE[upper].up
        assert TABLE[lower].down <= TABLE[upper].down
    for rung in RUNGS[1:]:
        assert TABLE[rung].down < TABLE[rung].up
        assert TABLE[rung].down_s > TABLE[rung].up_s, "up quickly, down slowly"


@pytest.mark.parametrize(("lower", "upper"), PAIRS)
def test_each_step_up(lower: Rung, upper: Rung) -> None:
    steps, condition = standing_on(lower), TABLE[upper]
    for now in range(int(condition.up_s)):
        assert steps.update(condition.up, OPTIONAL, float(now)) is None
    assert steps.update(condition.up, OPTIONAL, condition.up_s) == Step(lower, upper, condition.up)
    assert steps.rung == upper


@pytest.mark.parametrize(("lower", "upper"), PAIRS)
def test_stress_below_a_step_or_for_too_short_does_not_lift(lower: Rung, upper: Rung) -> None:
    steps, condition = standing_on(lower), TABLE[upper]
    for now in range(60):
        assert steps.update(condition.up - 0.01, OPTIONAL, float(now)) is None or steps.rung < upper
        assert steps.rung != upper
    steps = standing_on(lower)
    for now in range(60):  # every third second is calm enough
        middle = (TABLE[lower].down + condition.up) / 2 if lower != "normal" else 0.5
        steps.update(condition.up if now % 3 else middle, OPTIONAL, float(now))
        assert steps.rung == lower


@pytest.mark.parametrize(("lower", "upper"), PAIRS)
def test_each_step_down(lower: Rung, upper: Rung) -> None:
    steps, condition = standing_on(upper), TABLE[upper]
    for now in range(int(condition.down_s)):
        assert steps.update(condition.down, OPTIONAL, float(now)) is None
    assert steps.update(condition.down, OPTIONAL, condition.down_s) == Step(upper, lower, condition.down)


@pytest.mark.parametrize("rung", RUNGS[1:])
def test_between_up_and_down_it_stays(rung: Rung) -> None:
    steps, condition = standing_on(rung), TABLE[rung]
    for now in range(300):
        assert steps.update((condition.up + condition.down) / 2, OPTIONAL, float(now)) is None


@pytest.mark.parametrize("rung", RUNGS[1:])
def test_one_bad_second_starts_the_way_down_anew(rung: Rung) -> None:
    steps, condition = standing_on(rung), TABLE[rung]
    for now in range(60):
        good = now % 8 != 7
        assert steps.update(0.0 if good else (condition.up + condition.down) / 2, OPTIONAL, float(now)) is None


@pytest.mark.parametrize(
    ("able", "way"),
    [
        ((), ["normal", "shorten", "shed", "refuse"]),
        (("offload",), ["normal", "shorten", "shed", "offload", "refuse"]),
        (("cached",), ["normal", "shorten", "shed", "cached", "refuse"]),
        (("offload", "cached"), list(RUNGS)),
    ],
)
def test_what_cannot_be_done_is_stepped_over_both_ways_and_told(able: tuple[Rung, ...], way: list[Rung]) -> None:
    steps, now = Ladder(), 0.0
    seen: list[Rung] = ["normal"]
    skipped: set[Rung] = set()
    for level in (math.inf, 0.0):
        for _ in range(100):
            now += 1
            if (step := steps.update(level, able, now)) is not None:
                assert step.old == seen[-1]
                seen.append(step.new)
                skipped.update(step.skipped)
    assert seen == way + way[-2::-1]
    assert skipped == OPTIONAL - set(able)


def test_stepping_over_asks_for_the_stress_of_where_it_leads() -> None:
    steps = standing_on("shed")
    for now in range(60):
        assert steps.update(3.9, (), float(now)) is None
    for now in range(60, 63):
        assert steps.update(4.0, (), float(now)) is None
    assert steps.update(4.0, (), 64.0) == Step("shed", "refuse", 4.0, ("offload", "cached"))


@pytest.mark.parametrize(("rung", "able", "to"), [("offload", ("cached",), "shed"), ("cached", (), "shed")])
def test_a_rung_that_can_no_longer_be_done_is_left_at_once(rung: Rung, able: tuple[Rung, ...], to: Rung) -> None:
    steps = standing_on(rung)
    step = steps.update(2.5, able, 0.0)
    assert step is not None
    assert (step.old, step.new) == (rung, to)


def test_the_ends_are_ends() -> None:
    steps = Ladder()
    for now in range(50):
        assert steps.update(0.0, (), float(now)) is None
    steps = standing_on("refuse")
    for now in range(50):
        assert steps.update(math.inf, (), float(now)) is None
    with pytest.raises(ValueError, match="Stress"):
        steps.update(math.nan, (), 0.0)


def test_a_refused_client_is_told_when_the_rung_may_be_left() -> None:
    steps = standing_on("refuse")
    assert steps.retry_after(0.0) == 10
    steps.update(0.5, (), 0.0)
    assert steps.retry_after(4.0) == 6
    assert steps.retry_after(99.0) == 1


def test_what_each_rung_does_to_each_level() -> None:
    for level in LEVELS:
        assert effect("normal", level) == Effect()
    assert effect("shorten", "critical") == Effect(drafts=False)
    assert effect("shorten", "standard") == Effect(256, logprobs=False, drafts=False)
    assert effect("shorten", "background") == Effect(128, logprobs=False, drafts=False)
    assert [effect("shed", level).refused for level in LEVELS] == [False, False, False, True]
    assert [effect("offload", level).offload for level in LEVELS] == [False, True, True, True]
    assert all(effect("cached", level).cached for level in LEVELS)
    assert [effect("refuse", level).refused for level in LEVELS] == [False, True, True, True]


def test_higher_rungs_never_give_more() -> None:
    for level in LEVELS:
        for lower, upper in PAIRS:
            less, more = effect(upper, level), effect(lower, level)
            assert less.refused >= more.refused
            assert less.logprobs <= more.logprobs
            assert less.drafts <= more.drafts
            assert (less.max_tokens or math.inf) <= (more.max_tokens or math.inf)


def test_stress_is_the_worst_ratio() -> None:
    assert stress([]) == 0
    assert stress([(None, 0.3)]) == 0
    assert stress([(0.15, 0.3), (0.2, 0.1), (None, 1.0)]) == pytest.approx(2.0)
    assert stress([(1.0, 0.0)]) == 0, "no objective, no stress"


@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0.2, 4), st.sets(st.sampled_from(sorted(OPTIONAL)))), max_size=120)
)
def test_one_rung_at_a_time_and_never_one_that_cannot_be_done(steps: list[tuple[float, float, set[Rung]]]) -> None:
    stairs, now = Ladder(), 0.0
    for level, pause, able in steps:
        now += pause
        before = stairs.rung
        step = stairs.update(level, able, now)
        assert (step is None) == (stairs.rung == before)
        assert stairs.rung not in OPTIONAL - able
        if step is not None:
            low, high = sorted((RUNGS.index(step.old), RUNGS.index(step.new)))
            assert set(RUNGS[low + 1 : high]) == set(step.skipped)
