"""Lines and heaps: order, leaving from anywhere, and that what left does not pile up."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from node.admission.lane import Heap, Lane, Ticket


def ticket(id: str, place: float = 0.0) -> Ticket:
    return Ticket(id, "standard", 2, place, math.inf, 100, 0.0)


def test_a_heap_gives_the_smallest_and_of_equal_ones_the_earlier() -> None:
    heap = Heap()
    for name, number in (("late", 2.0), ("a", 1.0), ("b", 1.0)):
        heap.push(number, ticket(name))
    order = []
    while (first := heap.first()) is not None:
        order.append(first.id)
        first.state = "gone"
        heap.note_gone()
    assert order == ["a", "b", "late"]


def test_who_left_does_not_pile_up() -> None:
    heap = Heap()
    stays = ticket("stays")
    heap.push(0.0, stays)  # it blocks the way out for all that come after it
    for number in range(1, 5000):
        passing = ticket(str(number))
        heap.push(float(number), passing)
        passing.state = "gone"
        heap.note_gone()
        assert len(heap) < 200
    assert heap.first() is stays


def test_a_lane_counts_both_kinds_and_those_who_return_come_first() -> None:
    lane = Lane()
    assert lane.first() is None
    assert lane.place() == math.inf
    old, new, back = ticket("old", 1.0), ticket("new", 5.0), ticket("back", 3.0)
    lane.add(new)
    lane.add(old)
    back.state = "parked"
    lane.add(back)
    assert len(lane) == 3
    assert lane.first() is back
    assert lane.place() == 1.0, "the line moves up with whoever waits longest"
    lane.leave(back, "running")
    assert (lane.first(), len(lane), back.state) == (old, 2, "running")
    lane.leave(old, "gone")
    assert (lane.first(), lane.place()) == (new, 5.0)


def test_leaving_without_having_been_in_line_changes_nothing() -> None:
    lane = Lane()
    waits, lags, runs = ticket("waits"), ticket("lags"), ticket("runs")
    lane.add(waits)
    lags.state, runs.state = "parked", "running"
    lane.leave(lags, "gone")
    lane.leave(runs, "gone")
    assert len(lane) == 1
    assert (lags.state, runs.state) == ("gone", "gone")


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=300))
def test_a_lane_is_a_sorted_list(steps: list[tuple[bool, int]]) -> None:
    lane, model = Lane(), []
    for number, (add, value) in enumerate(steps):
        if add or not model:
            new = ticket(str(number), float(value))
            lane.add(new)
            model.append(new)
            model.sort(key=lambda t: (t.place, int(t.id)))
        else:
            lane.leave(model.pop(value % len(model)), "gone")
        assert lane.first() is (model[0] if model else None)
        assert len(lane) == len(model)
        assert lane.since(7.0) == (0.0 if model else 7.0)
        assert lane.place() == (model[0].place if model else math.inf)


def test_thousands_in_any_order() -> None:
    lane, chance = Lane(), random.Random(3)
    tickets = [ticket(str(number), chance.random()) for number in range(3000)]
    for one in tickets:
        lane.add(one)
    for one in chance.sample(tickets, 2000):
        lane.leave(one, "gone")
    left = sorted((one for one in tickets if one.state == "waiting"), key=lambda t: t.place)
    seen = []
    while (first := lane.first()) is not None:
        seen.append(first)
        lane.leave(first, "running")
    assert seen == left
    assert len(lane) == 0
