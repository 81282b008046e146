"""What is remembered of a place."""

from __future__ import annotations

import pytest

from node.mesh.record import Budget, Record


def test_lateness_is_learned_from_surprises_and_forgotten() -> None:
    record = Record()
    assert record.excess_s(0.0) == 0.0
    for at in range(40):
        record.spoke(1.1, 0.1, float(at))
    late = record.excess_s(39.0)
    assert 0.85 < late <= 1.0
    assert record.excess_s(69.0) == pytest.approx(late / 2)
    for at in range(40, 80):
        record.spoke(0.1, 0.1, float(at))
    assert record.excess_s(80.0) < 0.05


def test_one_that_is_earlier_than_predicted_is_no_surprise() -> None:
    record = Record()
    record.spoke(0.1, 5.0, 0.0)
    assert record.excess_s(0.0) == 0.0


def test_a_liar_costs_a_minute_at_most() -> None:
    record = Record()
    for at in range(100):
        record.spoke(1e6, 0.0, float(at))
    assert record.excess_s(99.0) == 60.0


def test_what_is_usual_is_known_after_some() -> None:
    record = Record()
    assert record.typical_s(7.0) == 7.0
    for number in range(19):
        record.spoke(number / 100, 0.0, 0.0)
    assert record.usual_s() is None
    record.spoke(0.19, 0.0, 0.0)
    assert record.usual_s() == 0.18
    assert record.typical_s(7.0) == 0.10


def test_failures_open_the_breaker_and_block() -> None:
    record = Record()
    for _ in range(5):
        assert record.blocked(0.0) == ""
        record.failed(0.0, 0.0)
    assert record.blocked(1.0) == "5 failures in a row; asked again in 4 s"
    assert record.blocked(5.0) == "", "its time is over; whoever asks makes the trial"
    assert record.breaker.allows(5.0)
    assert record.blocked(6.0), "only one at a time"
    record.spoke(0.1, 0.1, 7.0)
    assert record.blocked(7.0) == ""


def test_its_own_word_on_when_to_come_back_counts() -> None:
    record = Record()
    record.busy(0.0, 3)
    assert record.blocked(1.0) == "it asked for 2 s of rest"
    assert record.blocked(3.0) == ""
    record.failed(10.0, 0.5, 503, retry_after=20)
    assert record.blocked(29.0)
    assert not record.blocked(30.0)
    assert record.breaker.state == "closed"


def test_a_wrong_key_blocks_for_long() -> None:
    record = Record()
    record.failed(0.0, 0.5, 401)
    assert "401" in record.blocked(3000.0)


def test_what_it_has_of_ours_is_counted() -> None:
    record = Record()
    record.began(0.0)
    record.began(0.0)
    record.ended()
    assert record.running == 1


def test_second_attempts_are_a_share_of_all() -> None:
    budget = Budget(0.05)
    assert not budget.spend()
    for _ in range(100):
        budget.request()
    assert [budget.spend() for _ in range(7)] == [True] * 5 + [False] * 2
    assert budget.used == 5
    assert not Budget(0.0).spend()
