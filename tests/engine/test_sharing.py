"""Shared cells are counted once, whoever leaves first: against sets of cells."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node.engine.sharing import Sharing


def test_two_that_share_and_part() -> None:
    sharing = Sharing()
    sharing.borrow(1, 0, 300)
    assert sharing.saved == 300
    sharing.leave(0)
    assert sharing.saved == 0, "the cells stay, with one owner"
    sharing.leave(1)
    sharing.leave(7)
    assert sharing.saved == 0


def test_the_one_that_borrowed_most_lends_on() -> None:
    sharing = Sharing()
    sharing.borrow(1, 0, 300)
    sharing.borrow(2, 0, 500)
    assert sharing.saved == 800
    sharing.leave(0)
    assert sharing.saved == 300
    sharing.leave(1)
    assert sharing.saved == 0


def test_a_chain_is_passed_up() -> None:
    sharing = Sharing()
    sharing.borrow(1, 0, 300)
    sharing.borrow(2, 1, 500)
    sharing.leave(1)
    assert sharing.saved == 300, "300 of the 500 were the first one's"


STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(1, 30), st.booleans()), max_size=40)


@given(STEPS)
def test_random_programs_agree_with_sets_of_cells(steps: list[tuple[int, int, int, bool]]) -> None:
    sharing, fresh = Sharing(), iter(range(100_000))
    held: dict[int, list[int]] = {}
    for slot, lender, tokens, leave in steps:
        if leave or slot in held:
            held.pop(slot, None)
            sharing.leave(slot)
        else:
            borrowed = held.get(lender, [])[:tokens] if lender != slot else []
            if borrowed:
                sharing.borrow(slot, lender, len(borrowed))
            held[slot] = [*borrowed, *(next(fresh) for _ in range(tokens))]
        distinct = {cell for cells in held.values() for cell in cells}
        assert sum(map(len, held.values())) - sharing.saved == len(distinct)
