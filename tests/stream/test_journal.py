"""Numbers without gaps, nothing seen before it is stored, eviction said aloud."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.generation import Entry, Token
from node.stream.journal import Evicted, Journal


def entry(number: int) -> Entry:
    return Entry(f"{number} ", Token(number, b"x"))


def write(journal: Journal, number: int) -> int:
    return journal.append(entry(number).text, entry(number).token)


def test_a_part_may_be_read() -> None:
    journal = Journal()
    for number in range(5):
        write(journal, number)
    journal.evict(1)
    assert list(journal.read(2, 4)) == [entry(2), entry(3)]
    assert list(journal.read(4, 9)) == [entry(4)]
    assert list(journal.read(3, 3)) == list(journal.read(9, 12)) == []


def test_a_plain_journal_shows_everything_at_once() -> None:
    journal = Journal()
    assert [write(journal, n) for n in range(3)] == [0, 1, 2]
    assert journal.read(1) == [entry(1), entry(2)]
    assert journal.read(3) == []


def test_a_durable_journal_shows_only_what_is_stored() -> None:
    journal = Journal(durable=True)
    write(journal, 0)
    write(journal, 1)
    assert journal.read(0) == []
    assert journal.unsent() == (0, [entry(0), entry(1)])
    assert journal.unsent() == (2, [])
    write(journal, 2)
    journal.stored(2)
    assert journal.read(0) == [entry(0), entry(1)]
    assert journal.unsent() == (2, [entry(2)])
    journal.stored(3)
    journal.stored(1)  # a late word changes nothing
    assert journal.read(2) == [entry(2)]


def test_eviction_is_an_error_and_never_a_gap() -> None:
    journal = Journal()
    for number in range(5):
        write(journal, number)
    journal.evict(3)
    assert (journal.first, journal.count) == (3, 5)
    assert journal.read(3) == [entry(3), entry(4)]
    with pytest.raises(Evicted) as error:
        journal.read(2)
    assert error.value.first == 3


def test_what_is_not_visible_is_not_evicted() -> None:
    journal = Journal(durable=True)
    write(journal, 0)
    journal.evict(1)
    assert journal.first == 0


def test_what_the_store_missed_is_given_again() -> None:
    journal = Journal(durable=True)
    write(journal, 0)
    write(journal, 1)
    journal.unsent()
    journal.unstored(0)
    journal.stored(2)
    write(journal, 2)
    assert journal.unsent() == (0, [entry(0), entry(1), entry(2)])


def test_a_restored_journal_goes_on_counting() -> None:
    journal = Journal(durable=True, entries=[entry(0), entry(1)])
    assert journal.read(0) == [entry(0), entry(1)]
    assert write(journal, 2) == 2
    assert journal.unsent() == (2, [entry(2)])


@given(st.lists(st.sampled_from(["append", "send", "store", "evict", "read"]), max_size=60), st.booleans())
def test_any_history_keeps_the_numbers(steps: list[str], durable: bool) -> None:
    journal = Journal(durable=durable)
    sent = stored = 0
    for step in steps:
        if step == "append":
            write(journal, journal.count)
        elif step == "send":
            first, entries = journal.unsent()
            assert first == (sent if durable else max(sent, journal.first))
            sent = first + len(entries)
        elif step == "store":
            stored = sent
            journal.stored(stored)
        elif step == "evict":
            journal.evict(journal.count - 2)
        else:
            visible = stored if durable else journal.count
            assert list(journal.read(journal.first)) == [entry(n) for n in range(journal.first, visible)]
