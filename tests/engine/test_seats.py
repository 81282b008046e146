"""Sequence ids are shared out without overlap, within llama.cpp's limit."""

from __future__ import annotations

import pytest

from node.engine import seats
from node.errors import EngineFailed
from node.ranges import MOST_SLOTS


@pytest.mark.parametrize("slots", [1, 8, seats.MOST_SLOTS])
def test_there_is_an_id_for_everyone(slots: int) -> None:
    assert seats.sequences(slots) == slots + seats.parked(slots)
    assert seats.sequences(slots) + seats.SPARE <= seats.MOST_SEQUENCES


def test_settings_allow_as_many_slots_as_there_are_ids_for() -> None:
    assert seats.MOST_SLOTS == MOST_SLOTS


def test_a_slot_and_a_seat_are_needed() -> None:
    seats.need_slot(3, 4)
    seats.need_seat(7, 4)
    with pytest.raises(EngineFailed, match="All 4 slots"):
        seats.need_slot(4, 4)
    with pytest.raises(EngineFailed, match="8 requests, of 4 that may run and 4 that may be held"):
        seats.need_seat(8, 4)
