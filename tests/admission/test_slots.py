"""Slots: who has one, who would make room, and how much urgent requests take from those below."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.admission.lane import Ticket
from node.admission.slots import MOST_SET_ASIDE, STALLED_S, Slots

PAUSE_S = 30.0


def ticket(id: str, rank: int, *, lags: bool = False, aged: bool = False) -> Ticket:
    return Ticket(id, "standard", rank, 0.0, math.inf, 100, 0.0, lags=lags, aged=aged)


def slots_with(*running: Ticket, count: int = 4, max_parked: int = 4, urgent: int = 1, displaces: int = 3) -> Slots:
    slots = Slots(count, max_parked, urgent, displaces, PAUSE_S)
    for at, each in enumerate(running):
        slots.take(each, float(at), each.aged)
    return slots


def test_the_victim_is_the_lowest_that_began_last() -> None:
    slots = slots_with(ticket("a", 3), ticket("b", 3), ticket("c", 2), ticket("d", 1))
    order = []
    while (victim := slots.victim(0)) is not None:
        order.append(victim.id)
        slots.park(victim, 9.0)
    assert order == ["b", "a", "c", "d"]


def test_nobody_makes_room_for_an_equal_and_the_aged_stay() -> None:
    slots = slots_with(ticket("equal", 1), ticket("aged", 3, aged=True), ticket("lower", 2))
    victim = slots.victim(1)
    assert victim is not None
    assert victim.id == "lower"
    slots.park(victim, 9.0)
    assert slots.victim(1) is None


def test_who_lags_makes_room_first_and_for_anybody() -> None:
    slots = slots_with(ticket("low", 3), ticket("lags", 0, lags=True))
    victim = slots.victim(2)
    assert victim is not None
    assert victim.id == "lags"


def test_who_lags_displaces_nobody_and_is_not_displaced() -> None:
    assert slots_with(ticket("urgent", 0), ticket("low", 2)).free_for_lower == 0
    assert slots_with(ticket("urgent", 0, lags=True), ticket("low", 2)).free_for_lower == 2
    assert slots_with(ticket("urgent", 0), ticket("low", 2, lags=True)).free_for_lower == 1
    assert slots_with(ticket("urgent", 0), ticket("low", 2, aged=True)).free_for_lower == 1, "nor who runs by its age"


def test_beyond_the_room_to_park_there_are_victims_for_higher_levels_only() -> None:
    slots = slots_with(ticket("a", 3), ticket("b", 3), ticket("lags", 0, lags=True), max_parked=1)
    assert slots.room_to_park
    slots.park(slots.running["b"], 1.0)
    assert not slots.room_to_park
    victim = slots.victim(0)
    assert victim is not None
    assert victim.id == "a", "who lags would have to be read again, for nothing"
    slots.set_aside = {str(number): ticket(str(number), 2) for number in range(MOST_SET_ASIDE)}
    assert slots.victim(0) is None
    assert slots_with(ticket("a", 3), max_parked=0).victim(0) is None, "a source that cannot hold anybody"


def test_laggards_leave_half_of_the_room() -> None:
    slots = slots_with(*(ticket(str(number), 2, lags=True) for number in range(4)), max_parked=4)
    assert [each.id for each in slots.laggards()] == ["0", "1"]
    for each in slots.laggards():
        slots.park(each, 1.0)
    assert slots.laggards() == []
    assert len(slots_with(ticket("a", 2, lags=True), max_parked=1).laggards()) == 1


def test_who_has_stalled_longest_is_set_aside_and_takes_no_room() -> None:
    late, early, brief, reads = (ticket(name, 2, lags=name != "reads") for name in ("late", "early", "brief", "reads"))
    late.lags_at, early.lags_at, brief.lags_at = 5.0, 4.0, 6.5
    slots = slots_with(late, early, brief, reads, max_parked=0)
    assert slots.stalled(4.0 + STALLED_S - 0.1) is None
    assert slots.stalled(6.0 + STALLED_S) is early
    slots.put_aside(early, 9.0)
    assert (list(slots.set_aside), slots.free, early.state) == (["early"], 1, "parked")
    slots.take(early, 10.0)
    assert (slots.set_aside, slots.free) == ({}, 0)
    slots.put_aside(early, 11.0)
    slots.leave(early, 12.0)
    assert slots.set_aside == {}


def test_no_more_than_so_many_are_set_aside() -> None:
    stalled = ticket("x", 2, lags=True)
    stalled.lags_at = 0.0
    slots = slots_with(stalled)
    slots.set_aside = {str(number): ticket(str(number), 2) for number in range(MOST_SET_ASIDE)}
    assert slots.stalled(99.0) is None


@pytest.mark.parametrize(
    ("urgent_running", "lower_running", "left"), [(0, 0, 8), (0, 5, 3), (1, 0, 5), (1, 5, 0), (2, 1, 1), (3, 2, -2)]
)
def test_each_urgent_one_takes_three_slots_from_those_below(urgent_running: int, lower_running: int, left: int) -> None:
    running = [ticket(f"u{number}", number % 2) for number in range(urgent_running)]
    running += [ticket(f"l{number}", 2 + number % 2) for number in range(lower_running)]
    assert slots_with(*running, count=8).free_for_lower == left


def test_what_is_open_to_whom() -> None:
    slots = slots_with(ticket("i", 1), ticket("s", 2), ticket("b", 3), count=8, max_parked=2)
    assert slots.open_to(0) == 8, "5 free, and 3 would make room"
    assert slots.open_to(1) == 7
    assert slots_with(ticket("b", 3), count=8, max_parked=0).open_to(0) == 7
    full = slots_with(ticket("b", 3), count=1, max_parked=1)
    full.parked = {"p": ticket("p", 3)}
    assert full.open_to(0) == 1
    full.set_aside = {str(number): ticket(str(number), 3) for number in range(MOST_SET_ASIDE)}
    assert full.open_to(0) == 0, "nobody can make room any more"
    assert slots.open_to(2) == 3, "5 less the 2 that run"
    assert slots_with(*(ticket(str(n), 3) for n in range(4)), urgent=-1).open_to(0) == 0


def test_one_slot_in_eight_is_for_the_aged() -> None:
    assert slots_with(ticket("low", 3), count=8).open_to_aged(0.0)
    assert not slots_with(ticket("aged", 3, aged=True), count=8).open_to_aged(99.0)
    assert slots_with(ticket("aged", 3, aged=True), count=16).open_to_aged(99.0)
    assert slots_with(ticket("aged", 3, aged=True, lags=True), count=8).open_to_aged(99.0)
    slots = slots_with(count=8)
    assert not slots.small
    slots.limit = 4
    assert (slots.free, slots.free_for_aged) == (4, 8)
    slots.strict = True
    assert slots.free_for_aged == 4
    slots.limit = 3
    assert slots.small


@pytest.mark.parametrize(("count", "pause_s"), [(3, 0.0), (8, PAUSE_S), (16, PAUSE_S / 2)])
def test_the_next_one_by_its_age_waits_for_its_turn(count: int, pause_s: float) -> None:
    aged = ticket("aged", 3, aged=True)
    slots = slots_with(aged, count=count)
    slots.leave(aged, 0.0)
    assert slots.open_to_aged(pause_s)
    assert pause_s == 0 or not slots.open_to_aged(pause_s - 0.1)


def test_the_highest_is_of_those_that_make_tokens() -> None:
    assert slots_with(ticket("lags", 0, lags=True), ticket("i", 1), ticket("b", 3)).highest == 1
    assert slots_with().highest is None


def test_a_lowered_limit_displaces_nobody_by_itself() -> None:
    slots = slots_with(ticket("a", 2), ticket("b", 3), count=4)
    slots.limit = 1
    assert (slots.free, slots.free_for_lower, slots.open_to(3)) == (-1, 0, 0)
    slots.limit = -5
    assert slots.limit == 1
    slots.limit = 99
    assert slots.limit == 4


def test_time_in_a_slot_adds_up() -> None:
    one = ticket("a", 2)
    slots = slots_with(one)
    slots.park(one, 3.0)
    slots.take(one, 10.0)
    slots.leave(one, 14.0)
    slots.leave(one, 99.0)
    assert one.ran_s == 7.0
    assert (slots.running, slots.parked) == ({}, {})


@given(st.lists(st.tuples(st.sampled_from(["take", "park", "leave"]), st.integers(0, 9), st.integers(0, 3))))
def test_a_ticket_is_in_one_place(steps: list[tuple[str, int, int]]) -> None:
    slots, tickets = Slots(4, 4, 1, 2, PAUSE_S), [ticket(str(number), number % 4) for number in range(10)]
    for now, (verb, pick, _) in enumerate(steps):
        one = tickets[pick]
        if verb == "take" and slots.free > 0 and one.id not in slots.running:
            slots.take(one, now)
        elif verb == "park" and one.id in slots.running:
            slots.park(one, now)
        elif verb == "leave":
            slots.leave(one, now)
        assert not slots.running.keys() & slots.parked.keys()
        assert slots.free == 4 - len(slots.running)
        assert slots.open_to(3) <= max(0, slots.free)
