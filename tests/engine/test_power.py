"""How many threads on battery and in the heat: the rule, and the task that looks and tells."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from node.engine import power
from node.engine.power import COOL_S, Allowance, watch
from node.machine.heat import Heat, Zone
from node.machine.supply import Supply
from node.settings import Power

COOL, HOT = Heat((Zone("cpu", 50.0, 85.0),)), Heat((Zone("cpu", 86.0, 85.0),))
MAINS, BATTERY = Supply(False), Supply(True, 50)


def test_nothing_is_watched_for_unless_it_is_set() -> None:
    assert not Allowance(Power()).wanted
    assert Allowance(Power(hot_threads=1)).wanted
    assert Allowance(Power(battery_threads=1)).wanted


@pytest.mark.parametrize(
    ("settings", "hot", "battery", "most", "reason"),
    [
        (Power(battery_threads=2), False, True, 2, "battery"),
        (Power(battery_threads=2), False, False, None, ""),
        (Power(battery_threads=2), True, False, None, ""),
        (Power(hot_threads=1), True, False, 1, "heat"),
        (Power(hot_threads=1), False, True, None, ""),
        (Power(hot_threads=3, battery_threads=2), True, True, 2, "heat and battery"),
        (Power(hot_threads=1, battery_threads=2), True, True, 1, "heat and battery"),
    ],
)
def test_the_rule(settings: Power, hot: bool, battery: bool, most: int | None, reason: str) -> None:
    allowance = Allowance(settings)
    assert allowance.update(hot, battery, 1000.0) is (most is not None)
    assert (allowance.most, allowance.reason) == (most, reason)
    assert not allowance.update(hot, battery, 1001.0)


def test_it_must_be_cool_for_a_minute() -> None:
    allowance = Allowance(Power(hot_threads=1))
    assert allowance.update(True, False, 10.0)
    assert not allowance.update(False, False, 20.0)
    assert not allowance.update(True, False, 50.0)
    assert not allowance.update(False, False, 50.0 + COOL_S - 1)
    assert allowance.most == 1
    assert allowance.update(False, False, 50.0 + COOL_S)
    assert allowance.most is None


def test_it_does_not_begin_hot() -> None:
    allowance = Allowance(Power(hot_threads=1))
    assert not allowance.update(False, False, 0.0)
    assert allowance.most is None


async def test_the_engine_is_told_what_changed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(power, "LOOK_S", 0.0)
    seen = iter([(COOL, MAINS), (COOL, BATTERY), (HOT, BATTERY), (COOL, MAINS)])
    told: list[int | None] = []

    def look() -> tuple[Heat, Supply]:
        try:
            return next(seen)
        except StopIteration:
            raise EOFError from None  # a StopIteration cannot leave a thread

    async def tell(most: int | None) -> None:
        told.append(most)

    clock = itertools.count(0, 1000).__next__  # each look long after the last one
    caplog.set_level(logging.INFO)
    with pytest.raises(EOFError):
        await asyncio.wait_for(watch(Allowance(Power(battery_threads=2)), look, tell, clock), 10)
    assert told == [2, None]
    assert [(record.levelname, record.__dict__["threads"]) for record in caplog.records] == [
        ("WARNING", 2),
        ("INFO", None),
    ]
