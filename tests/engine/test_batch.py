"""The planner: streams first, prompts in chunks, cells oldest first, always progress."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.engine.batch import Chunk, Plan, Row, StepCost, Targets, plan_step
from node.generation import LEVELS
from node.settings import Engine


def test_streams_come_before_prompts() -> None:
    plan = plan_step([Row(0, 3000, 0), Row(1, 1, 50), Row(2, 1, 9)], cells=8192, budget=16, limit=512)
    assert plan.chunks == (Chunk(1, 1, True), Chunk(2, 1, True), Chunk(0, 16, False))


def test_a_short_prompt_passes_a_long_one_but_does_not_stop_it() -> None:
    plan = plan_step([Row(0, 3000, 500), Row(1, 12, 0)], cells=8192, budget=16, limit=512)
    assert plan.chunks == (Chunk(0, 4, False), Chunk(1, 12, True))


def test_an_urgent_prompt_is_read_first_but_the_others_do_not_starve() -> None:
    rows = [Row(0, 3000, 0, 0), Row(1, 40, 0, 1), Row(2, 3000, 900, 3), Row(3, 20, 0, 3)]
    plan = plan_step(rows, cells=8192, budget=64, limit=512)
    assert plan.chunks == (Chunk(0, 60, False), Chunk(2, 4, False))
    plan = plan_step([Row(0, 12, 0, 0), *rows[1:]], cells=8192, budget=64, limit=512)
    assert plan.chunks == (Chunk(0, 12, True), Chunk(1, 40, True), Chunk(2, 4, False), Chunk(3, 8, False))


def test_a_quarter_is_for_what_is_due_and_urgent_ones_have_the_rest() -> None:
    rows = [Row(9, 3000, 200, 3, due=True), Row(0, 3000, 0, 1), Row(1, 3000, 0, 2)]
    plan = plan_step(rows, cells=9000, budget=64, limit=512)
    assert {chunk.slot: chunk.tokens for chunk in plan.chunks} == {9: 16, 0: 48}


def test_cells_that_are_kept_begin_nobody_else() -> None:
    rows = [Row(0, 1, 30), Row(1, 40, 0)]
    assert plan_step(rows, cells=100, budget=64, limit=512, kept=30).chunks[1:] == ()
    assert plan_step(rows, cells=100, budget=64, limit=512, kept=29).chunks[1:] == (Chunk(1, 40, True),)
    half_read = [Row(0, 1, 30), Row(1, 40, 10)]
    assert plan_step(half_read, cells=100, budget=64, limit=512, kept=90).chunks[1:] == (Chunk(1, 40, True),)


def test_what_is_due_waits_for_cells_before_all_others_and_keeps_them() -> None:
    rows = [Row(2, 70, 0, 3, due=True), Row(0, 1, 40, 0), Row(1, 20, 0, 0)]
    assert plan_step(rows, cells=100, budget=64, limit=512).chunks == (Chunk(0, 1, True),)
    streams = [Row(2, 1, 60, 3, due=True), Row(0, 1, 40, 0)]
    assert plan_step(streams, cells=100, budget=64, limit=512) == Plan((Chunk(2, 1, True),), preempted=(0,))


def test_the_least_budget_is_for_the_most_urgent() -> None:
    assert plan_step([Row(0, 90, 0, 0), Row(1, 9, 0, 2)], cells=100, budget=1, limit=8).chunks == (Chunk(0, 1, False),)


def test_the_least_urgent_gives_way_first() -> None:
    plan = plan_step([Row(5, 1, 50, 0), Row(3, 1, 50, 3)], cells=100, budget=64, limit=512)
    assert plan == Plan((Chunk(5, 1, True),), preempted=(3,))


def test_a_prompt_is_begun_only_when_all_of_it_fits() -> None:
    plan = plan_step([Row(0, 1, 60), Row(1, 50, 0), Row(2, 5, 0)], cells=100, budget=64, limit=512)
    assert plan.chunks == (Chunk(0, 1, True),), "the older one waits for cells and nobody overtakes it"


def test_the_youngest_gives_way_when_streams_need_its_cells() -> None:
    plan = plan_step([Row(0, 1, 60), Row(1, 1, 40)], cells=100, budget=64, limit=512)
    assert plan == Plan((Chunk(0, 1, True),), preempted=(1,))


def test_half_read_prompts_cannot_block_each_other() -> None:
    plan = plan_step([Row(0, 40, 50), Row(1, 40, 50)], cells=100, budget=64, limit=512)
    assert plan == Plan((Chunk(0, 40, True),), preempted=(1,))


@st.composite
def programs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]], int, int, list[int]]:
    cells = draw(st.integers(8, 200))
    requests = draw(
        st.lists(st.tuples(st.integers(1, cells - 1), st.integers(1, 30)), min_size=1, max_size=8).map(
            lambda items: [(prompt, max(1, min(answer, cells - prompt))) for prompt, answer in items]
        )
    )
    ranks = sorted(draw(st.lists(st.integers(0, 3), min_size=len(requests), max_size=len(requests))))
    return cells, requests, draw(st.integers(1, 64)), draw(st.integers(8, 64)), ranks


@given(programs())
def test_every_request_ends_and_the_cache_is_never_overrun(
    program: tuple[int, list[tuple[int, int]], int, int, list[int]],
) -> None:
    cells, requests, budget, limit, ranks = program
    rows = [Row(slot, prompt, 0, ranks[slot]) for slot, (prompt, _) in enumerate(requests)]
    answers = {slot: answer for slot, (_, answer) in enumerate(requests)}
    for _ in range(20_000):
        if not rows:
            return
        plan = plan_step(rows, cells, budget, limit)
        assert plan.chunks, "no progress"
        assert plan.tokens <= limit
        by_slot = {row.slot: row for row in rows}
        for slot in plan.preempted:
            row = by_slot[slot]
            by_slot[slot] = replace(row, cached=0, pending=row.cached + row.pending)
        for chunk in plan.chunks:
            row = by_slot[chunk.slot]
            assert 0 < chunk.tokens <= row.pending
            assert chunk.last == (chunk.tokens == row.pending)
            by_slot[chunk.slot] = replace(row, cached=row.cached + chunk.tokens, pending=row.pending - chunk.tokens)
            if chunk.last:
                answers[chunk.slot] -= 1
                by_slot[chunk.slot] = replace(by_slot[chunk.slot], pending=1)
        assert sum(row.cached for row in by_slot.values()) <= cells
        rows = [row for row in by_slot.values() if answers[row.slot] > 0]
    raise AssertionError("the requests did not end")


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [
        ([], 0.6),
        ([Row(0, 500, 0, LEVELS.index("critical"))], 0.6),
        ([Row(0, 1, 9, LEVELS.index("critical"))], 0.05),
        ([Row(0, 1, 9, LEVELS.index("critical")), Row(1, 500, 0, LEVELS.index("standard"))], 0.05),
        ([Row(0, 1, 9, LEVELS.index("background")), Row(1, 500, 0, LEVELS.index("interactive"))], 0.08),
    ],
)
def test_only_an_urgent_prompt_may_slow_streams_a_little_more(rows: list[Row], seconds: float) -> None:
    assert Targets(0.05, 0.08, 0.6).seconds(rows) == seconds
    assert Targets(0.1, 0.08, 0.6).seconds(rows) == max(seconds, 0.1)


def test_targets_are_settings() -> None:
    assert Targets.of(Engine(step_ms=50, urgent_step_ms=70, prefill_step_ms=900)) == Targets(0.05, 0.07, 0.9)


def test_cost_learns_the_machine() -> None:
    cost = StepCost()
    for _ in range(60):
        cost.observe(4, 0, 0.020)
        cost.observe(4, 10, 0.020 + 10 * 0.0035)
        cost.observe(0, 64, 64 * 0.0015)
    assert abs(cost.decode(4) - 0.020) < 0.001
    assert abs(cost.per_token(4) - 0.0035) < 0.0003
    assert abs(cost.per_token(0) - 0.0015) < 0.0001
    assert cost.budget(4, 0.055) in (9, 10)
    assert cost.budget(0, 0.250) == 128


def test_one_slow_step_does_not_stop_reading() -> None:
    cost = StepCost(per_token=0.001)
    cost.observe(0, 64, 5.0)
    cost.observe(2, 16, 5.0)
    assert cost.per_token(0) <= 0.0013
    assert cost.per_token(2) <= 0.0013


def test_a_slow_machine_still_reads_prompts() -> None:
    cost = StepCost(per_token=0.050)
    cost.observe(4, 0, 0.400)
    assert cost.budget(4, 0.055) == 8, "twice the streaming time, where that is slow"
    assert StepCost(per_token=1.0).budget(4, 0.001) >= StepCost.LEAST
    assert StepCost(per_token=1.0).budget(0, 0.001) == StepCost.TILE


def test_beside_one_that_is_read_aside_less_is_added_to_a_step() -> None:
    cost = StepCost(per_token=0.0199)
    cost.observe(4, 0, 0.400)
    assert cost.budget(4, 0.055) == 20
    assert cost.budget(4, 0.055, shared=True) == 5, "a quarter of the streaming time"
    assert cost.budget(4, 0.800, shared=True) == 20, "or what the target leaves, where it is fast"
    assert StepCost(per_token=1.0).budget(4, 0.001, shared=True) == StepCost.LEAST


def test_small_chunks_beside_streams_do_not_make_the_next_prompt_alone_slow() -> None:
    cost = StepCost()
    for _ in range(50):
        cost.observe(4, 4, 0.080)
    assert cost.per_token(4) > 0.009
    assert cost.per_token(0) == 0.002


def test_the_end_of_a_prompt_teaches_nothing_about_full_chunks() -> None:
    cost = StepCost()
    for _ in range(50):
        cost.observe(0, 3, 0.030)
    assert cost.per_token(0) == 0.002


def test_an_unseen_batch_size_is_scaled_from_the_nearest() -> None:
    cost = StepCost()
    cost.observe(4, 0, 0.020)
    assert cost.decode(8) == 0.040
    assert cost.decode(2) == 0.020
    assert cost.decode(0) == 0.0


def test_what_other_threads_would_cost_is_guessed_from_what_is_known() -> None:
    cost = StepCost()
    for _ in range(50):
        cost.observe(0, 256, 0.256)
        cost.observe(2, 0, 0.020)
        cost.observe(2, 10, 0.040)
    guess = cost.scaled(4)
    assert guess.decode(2) == pytest.approx(4 * cost.decode(2))
    assert guess.per_token(0) == pytest.approx(4 * cost.per_token(0))
    assert guess.budget(0, 0.6) <= cost.budget(0, 0.6) / 2
    guess.observe(2, 0, 9.0)
    assert cost.decode(2) == pytest.approx(0.020, rel=0.05), "the guess is its own"
