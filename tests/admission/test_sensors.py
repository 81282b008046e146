"""What requests feel, by level, on a clock of our own. Figures come from buckets: at most a tenth too high."""

from __future__ import annotations

import pytest

from node.admission.sensors import Sensors


def about(seconds: float) -> object:
    return pytest.approx(seconds, rel=0.11)


def test_a_request_from_its_offer_to_its_end() -> None:
    sensors = Sensors()
    sensors.admitted("a", "interactive", 10, 10.0)
    sensors.started("a", 10.5)
    for at in (11.0, 11.1, 11.4):
        sensors.token("a", at)
    sensors.ended("a", "finished")
    felt = sensors.levels["interactive"]
    assert felt.wait.percentile(0.5, 12.0) == about(0.5)
    assert felt.ttft.percentile(0.5, 12.0) == about(1.0)
    assert felt.gap.percentile(1.0, 12.0) == sensors.pace.percentile(1.0, 12.0) == about(0.3)
    assert felt.gap.percentile(0.5, 12.0) == about(0.1)
    assert sensors.gap_s(("critical", "interactive"), 12.0) == about(0.3)
    assert sensors.gap_s(("critical",), 12.0) is None
    assert felt.fates == {"admitted": 1, "finished": 1}
    assert not sensors.levels["critical"].fates
    assert felt.ttft.percentile(0.5, 80.0) is None, "that is more than a minute ago"


def test_time_without_a_slot_is_no_gap() -> None:
    sensors = Sensors()
    sensors.admitted("a", "standard", 10, 0.0)
    sensors.started("a", 0.0)
    sensors.token("a", 0.1)
    sensors.parked("a")
    sensors.token("a", 0.3)  # of the step that was under way
    sensors.resumed("a")
    sensors.token("a", 60.0)
    sensors.token("a", 60.1)
    assert sensors.pace.percentile(1.0, 60.1) == about(0.1)
    assert sensors.levels["standard"].fates["parked"] == 1


def test_one_that_was_parked_before_it_spoke_still_has_its_first_token() -> None:
    sensors = Sensors()
    sensors.admitted("a", "standard", 10, 0.0)
    sensors.started("a", 0.0)
    sensors.parked("a")
    sensors.token("a", 5.0)
    assert sensors.levels["standard"].ttft.percentile(0.5, 5.0) == about(5.0)
    assert sensors.pace.percentile(1.0, 5.0) is None


def test_who_was_never_let_in_and_who_is_gone() -> None:
    sensors = Sensors()
    sensors.refused("background")
    assert sensors.levels["background"].fates == {"refused": 1}
    sensors.admitted("a", "background", 10, 0.0)
    sensors.ended("a", "expired")
    sensors.ended("a", "expired")
    sensors.parked("a")
    assert sensors.levels["background"].fates == {"refused": 1, "admitted": 1, "expired": 1}


def test_waits_are_those_of_who_got_a_slot_and_of_who_has_none_yet() -> None:
    sensors = Sensors()
    both = ("critical", "interactive")
    assert sensors.wait_s(both, 0.0) is None
    sensors.admitted("a", "interactive", 10, 0.0)
    sensors.started("a", 0.2)
    assert sensors.wait_s(both, 0.2) == about(0.2)
    assert sensors.wait_s(("standard",), 0.2) is None
    sensors.admitted("b", "critical", 10, 0.5)
    sensors.admitted("c", "background", 10, 0.0)
    assert sensors.wait_s(both, 3.5) == 3.0, "nobody got a slot lately, and one has waited for three seconds"
    sensors.ended("b", "cancelled")
    assert sensors.wait_s(both, 19.0) is None
    assert sensors.wait_s(("background",), 9.0) == 9.0


def test_tokens_of_those_who_hold_a_slot() -> None:
    sensors = Sensors()
    sensors.admitted("a", "standard", 100, 0.0)
    sensors.admitted("b", "standard", 1000, 0.0)
    assert sensors.tokens_running == 0
    sensors.started("a", 0.0)
    sensors.started("b", 0.0)
    sensors.token("a", 0.1)
    assert sensors.tokens_running == 1101
    sensors.parked("b")
    assert sensors.tokens_running == 101
    sensors.resumed("b")
    sensors.ended("a", "finished")
    assert sensors.tokens_running == 1000
