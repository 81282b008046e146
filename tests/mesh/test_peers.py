"""The table: found, suspect, back, gone; when who is asked; and what announcements cannot do."""

from __future__ import annotations

import itertools
import math

import pytest

from node.mesh.peers import MOST, Place, Table
from tests.mesh.sights import sight

ME, A, B, C = "0" * 16, "a" * 16, "b" * 16, "c" * 16


def table(most: int = MOST, draw: float = 0.5) -> Table:
    return Table(ME, lambda: draw, most)


def place(node_id: str, address: str = "10.0.0.1", port: int = 8470) -> Place:
    return Place((address,), port, node_id)


def meet(known: Table, node_id: str, now: float = 0.0) -> None:
    """Announced, probed, alive."""
    known.hint(node_id, place(node_id), "announced", now)
    assert node_id in {key for key, _ in known.due(now)}
    known.heard(node_id, node_id, sight(node_id), now, 0.002)


def ids(known: Table, now: float) -> list[str]:
    return [neighbour.id for neighbour in known.candidates(now)]


def test_a_hint_is_no_neighbour_until_it_has_answered() -> None:
    known = table()
    assert known.hint(A, place(A), "announced", 0.0)
    assert ids(known, 0.0) == []
    assert known.due(0.0) == [(A, place(A))]
    assert known.due(0.0) == [], "nobody is asked twice at once"
    assert known.heard(A, A, sight(A), 0.1, 0.002) == "found"
    (found,) = known.candidates(0.6)
    assert (found.id, found.url, found.state) == (A, f"https://{A}.mesh:8470", "alive")
    assert found.age_s == pytest.approx(0.5)
    assert found.round_trip_s == 0.002


def test_a_node_never_meets_itself() -> None:
    known = table()
    known.hint(ME, place(ME), "announced", 0.0)
    assert len(known) == 0
    known.hint("host:1", Place(("host",), 1), "configured", 0.0)
    known.due(0.0)
    assert known.heard("host:1", ME, sight(ME), 0.0, 0.001) is None
    assert ids(known, 0.0) == []
    assert known.unreached() == [("host:1", "it is this node")]
    assert known.due(20.0) == []


def test_in_use_everybody_is_asked_every_second() -> None:
    known = table()
    meet(known, A)
    asked = []
    for tick in range(100):
        now = tick / 10
        known.use(now)
        for key, _ in known.due(now):
            asked.append(now)
            known.heard(key, A, sight(A), now, 0.002)
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert max(gaps) <= 1.1
    assert len(asked) <= 12


def test_idle_nobody_is_asked_but_everybody_is_watched() -> None:
    known = table()
    meet(known, A)
    ((key, _, wait_s),) = known.watches()
    assert key == A
    assert wait_s >= 15
    assert known.watches() == [], "one watch each"
    assert known.due(1000.0) == []
    assert known.next_time() == math.inf
    known.heard(A, A, sight(A, waiting=3), 20.0)
    known.unwatched(A, 20.0)
    assert len(known.watches()) == 1
    (found,) = known.candidates(20.0)
    assert found.sight.waiting == 3


def test_watches_are_longer_with_many_neighbours() -> None:
    known = table()
    for number in range(19):
        meet(known, f"{number + 1:016x}")
    waits = [wait_s for _, _, wait_s in known.watches()]
    assert len(waits) == 19
    assert min(waits) > 150


def test_use_after_a_pause_asks_at_once_those_not_heard_lately() -> None:
    known = table()
    meet(known, A, 0.0)
    meet(known, B, 99.5)
    known.use(100.0)
    assert [key for key, _ in known.due(100.0)] == [A]


def test_a_killed_neighbour_is_suspect_at_once_and_gone_in_time() -> None:
    known = table()
    meet(known, A)
    known.watches()
    assert known.unwatched(A, 100.0, broken="the connection broke") == "suspect"
    assert ids(known, 100.0) == []
    assert known.key_of(A) == A
    assert [key for key, _ in known.due(100.0)] == [A]
    assert known.failed(A, 100.0, "refused") is None
    assert known.next_time() <= 101.0
    assert known.silent(100.0) == [A], "it was last heard at 0"
    assert known.key_of(A) is None
    assert known.known(100.0) == []
    assert known.unreached() == [(A, "refused")]


def test_one_that_vanishes_in_use_is_out_within_two_seconds_and_gone_within_fifteen() -> None:
    known = table(draw=0.99)
    meet(known, A)
    out = gone = math.inf
    pending: list[tuple[float, str]] = []
    for tick in range(200):
        now = tick / 10
        known.use(now)
        pending += [(now + 0.8, key) for key, _ in known.due(now)]  # each probe runs into its timeout
        for at, key in [item for item in pending if item[0] <= now]:
            known.failed(key, now, "timeout")
            pending.remove((at, key))
        if not ids(known, now):
            out = min(out, now)
        if known.silent(now):
            gone = min(gone, now)
    assert out <= 2.0
    assert gone <= 11.0


def test_a_suspect_that_answers_is_back() -> None:
    known = table()
    meet(known, A)
    assert known.doubt(A, 5.0, "a stream broke") == "suspect"
    assert known.doubt(A, 5.0, "a stream broke") is None
    known.due(5.0)
    assert known.heard(A, A, sight(A), 5.1, 0.002) == "back"
    assert ids(known, 5.1) == [A]


def test_a_broken_watch_is_no_news_of_one_that_is_suspect_already() -> None:
    known = table()
    meet(known, A)
    known.watches()
    known.doubt(A, 1.0, "x")
    assert known.unwatched(A, 1.0, broken="y") is None


def test_who_cannot_be_reached_is_asked_less_and_less_often() -> None:
    known = table()
    known.hint(A, place(A), "announced", 0.0)
    asked = []
    for tick in range(3000):
        now = tick / 10
        for key, _ in known.due(now):
            asked.append(now)
            known.failed(key, now, "refused")
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert gaps[0] <= 1.5
    assert 20 <= max(gaps) <= 40


def test_a_change_of_the_network_asks_everybody_at_once() -> None:
    known = table()
    meet(known, A)
    known.hint(B, place(B), "announced", 0.0)
    for _ in range(6):
        known.due(1000.0)
        known.failed(B, 1000.0, "no route")
    assert known.due(1001.5) == []
    known.stir(1001.5)
    assert {key for key, _ in known.due(1001.5)} == {A, B}


def test_goodbye_is_believed_only_if_nobody_answers() -> None:
    known = table()
    meet(known, A)
    known.withdraw(A, 5.0)
    assert ids(known, 5.0) == [A]
    assert [key for key, _ in known.due(5.0)] == [A]
    known.heard(A, A, sight(A), 5.1, 0.002)
    assert ids(known, 5.1) == [A], "somebody else said it"
    known.withdraw(A, 6.0)
    known.due(6.0)
    known.failed(A, 6.0, "refused")
    assert known.silent(20.0) == [A]
    assert len(known) == 0


def test_goodbye_of_one_that_was_never_heard() -> None:
    known = table()
    known.hint(A, place(A), "announced", 0.0)
    known.withdraw(A, 1.0)
    known.withdraw(B, 1.0)
    assert len(known) == 0
    known.hint("host:1", Place(("host",), 1), "configured", 0.0)
    known.withdraw("host:1", 1.0)
    assert len(known) == 1


def test_a_false_address_does_not_replace_the_one_that_works() -> None:
    known = table()
    meet(known, A)
    known.hint(A, place(A, "10.6.6.6"), "announced", 5.0)
    ((_, where),) = known.due(5.0)
    assert where.addresses == ("10.0.0.1", "10.6.6.6")
    assert ids(known, 5.0) == [A]


def test_a_new_address_of_one_that_is_not_there_any_more_counts() -> None:
    known = table()
    known.hint(A, place(A), "announced", 0.0)
    known.due(0.0)
    known.failed(A, 0.0, "no route")
    known.hint(A, place(A, "10.0.0.9"), "announced", 5.0)
    assert known.due(5.0) == [(A, place(A, "10.0.0.9"))]


def test_a_flood_of_announcements_pushes_nobody_out() -> None:
    known = table(most=4)
    meet(known, A)
    known.hint("host:1", Place(("host",), 1), "configured", 0.0)
    for number in range(1000):
        known.hint(f"{number + 1:016x}", place(f"{number + 1:016x}"), "announced", 1.0)
    assert len(known) == 4
    assert ids(known, 1.0) == [A]
    assert not known.hint(B, place(B), "announced", 1.0), "nobody of the others has been asked yet"
    for key, _ in known.due(1.0):
        known.failed(key, 1.0, "refused")
    assert known.hint(B, place(B), "announced", 2.0)
    assert known.hint(C, place(C), "called", 2.0)
    assert ids(known, 2.0) == [A]
    assert known.place("host:1") is not None


def test_announcing_again_and_again_does_not_make_us_ask_again_and_again() -> None:
    known = table()
    asked = 0
    for tick in range(100):
        now = tick / 10
        known.hint(A, place(A, f"10.0.0.{tick}"), "announced", now)
        for key, _ in known.due(now):
            asked += 1
            known.failed(key, now, "refused")
    assert asked <= 11


def test_a_configured_place_takes_whoever_answers_there() -> None:
    known = table()
    known.hint("10.0.0.1:8470", Place(("10.0.0.1",), 8470), "configured", 0.0)
    ((key, where),) = known.due(0.0)
    assert where.id == ""
    assert known.heard(key, A, sight(A), 0.0, 0.001) == "found"
    assert known.key_of(A) == key
    known.silent(100.0)
    assert known.place(key) is not None


def test_a_node_at_two_places_is_one_neighbour() -> None:
    known = table()
    known.hint("10.0.0.1:8470", Place(("10.0.0.1",), 8470), "configured", 0.0)
    meet(known, A)
    known.due(0.0)
    known.heard("10.0.0.1:8470", A, sight(A), 0.0, 0.001)
    assert ids(known, 0.0) == [A]
    assert len(known.watches()) == 1
    known.use(50.0)
    assert len(known.due(50.0)) == 1


def test_an_announced_node_that_is_known_by_a_configured_place_is_not_asked_again() -> None:
    known = table()
    known.hint("10.0.0.1:8470", Place(("10.0.0.1",), 8470), "configured", 0.0)
    known.due(0.0)
    known.heard("10.0.0.1:8470", A, sight(A), 0.0, 0.001)
    known.hint(A, place(A), "announced", 1.0)
    assert known.due(1.0) == []


def test_a_caller_is_asked_back_and_forgotten_when_it_is_gone() -> None:
    known = table()
    known.hint(A, place(A), "called", 0.0)
    assert [key for key, _ in known.due(0.0)] == [A]
    known.heard(A, A, sight(A), 0.0, 0.001)
    known.hint(A, place(A), "called", 1.0)
    assert known.due(1.0) == [], "who is alive needs no probe because it called"
    known.doubt(A, 5.0, "x")
    assert known.silent(15.0) == [A]
    assert len(known) == 0


def test_who_drains_is_known_but_no_candidate() -> None:
    known = table()
    meet(known, A)
    known.heard(A, A, sight(A, draining=True), 1.0)
    assert ids(known, 1.0) == []
    assert [neighbour.id for neighbour in known.known(1.0)] == [A]


def test_who_is_denied_is_dropped_at_once() -> None:
    known = table()
    meet(known, A)
    known.hint("host:1", Place(("host",), 1), "configured", 0.0)
    known.due(0.0)
    known.heard("host:1", A, sight(A), 0.0, 0.001)
    known.forget(A)
    assert len(known) == 0


def test_answers_of_places_that_are_gone_are_ignored() -> None:
    known = table()
    assert known.heard(A, A, sight(A), 0.0) is None
    assert known.failed(A, 0.0, "x") is None
    assert known.unwatched(A, 0.0, broken="x") is None
    assert known.doubt(A, 0.0, "x") is None


def test_fifty_neighbours_are_asked_at_most_sixteen_times_a_second() -> None:
    known = table()
    for number in range(50):
        meet(known, f"{number + 1:016x}")
    asked = 0
    for tick in range(100):
        now = 100 + tick / 10
        known.use(now)
        for key, _ in known.due(now):
            asked += 1
            known.heard(key, key, sight(key), now, 0.001)
    assert 50 <= asked <= 10 * 20 + 50
