"""One account: drains, windows, fading, and that what it says about the future comes true."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.admission.account import WINDOW_S, Account, Meter, Rates


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"requests": 0.0}, "requests"),
        ({"prompt": -5.0}, "prompt"),
        ({"output": math.nan}, "output"),
        ({"output": math.inf}, "output"),
        ({"burst": 0.0}, "burst"),
        ({"burst": 1.5}, "burst"),
        ({"steady": 0.0}, "steady"),
        ({"steady": math.nan}, "steady"),
        ({"fade_s": 0.0}, "fades"),
        ({"fade_s": math.inf}, "fades"),
    ],
)
def test_absurd_rates_are_refused(changes: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Rates(**changes)


def test_a_burst_is_at_least_one() -> None:
    assert Rates(requests=1, burst=0.1).most("requests") == 1
    assert Rates(prompt=1000, burst=0.25).most("prompt") == 250
    assert Rates().most("output") is None


def only(account: Account) -> Meter:
    (meter,) = account.meters
    return meter


def at(account: Account, now: float) -> tuple[Meter, float, float]:
    """The account's only meter, its clock, and the share of the last window that still counts."""
    account.advance(now, int(now // WINDOW_S))
    return only(account), account.clock, 1 - now % WINDOW_S / WINDOW_S


def test_only_what_has_a_cap_is_metered() -> None:
    account = Account("user", Rates(prompt=10, output=10), 0.0)
    assert [meter.quantity for meter in account.meters] == ["prompt", "output"]


def test_what_was_used_drains_and_slides_out() -> None:
    account = Account("user", Rates(prompt=600, burst=0.5), 0.0)
    meter, clock, left = at(account, 10.0)
    assert meter.remaining(clock, left) == pytest.approx(300)
    meter.use(300, clock)
    assert meter.remaining(clock, left) == pytest.approx(0, abs=1e-3)
    meter, clock, left = at(account, 20.0)
    assert meter.remaining(clock, left) == pytest.approx(100, abs=1e-3), "ten a second drain"
    meter, clock, left = at(account, 59.0)
    assert meter.remaining(clock, left) == pytest.approx(300)
    meter.use(300, clock)
    meter, clock, left = at(account, 90.0)
    assert meter.remaining(clock, left) == pytest.approx(300), "half of the last window counts"
    meter, clock, left = at(account, 200.0)
    assert (meter.previous, meter.current) == (0, 0)
    assert account.forgettable(200.0)


def test_what_is_pending_neither_drains_nor_slides_out() -> None:
    account = Account("user", Rates(output=600, burst=0.5), 0.0)
    meter, clock, left = at(account, 0.0)
    meter.pending = 200
    for now in (0.0, 30.0, 500.0):
        meter, clock, left = at(account, now)
        assert meter.remaining(clock, left) == pytest.approx(100, abs=1e-3)
        assert not account.forgettable(now)
    assert meter.reset_s(clock, left, 1.0) > 0


def test_use_makes_the_refill_fade_to_its_steady_share_and_a_pause_brings_it_back() -> None:
    rates = Rates(prompt=6000, burst=1.0, steady=0.25, fade_s=30.0)
    account = Account("user", rates, 0.0)
    meter, clock, _ = at(account, 0.0)
    meter.use(6000, clock)
    drained = []
    for now in (1.0, 30.0, 31.0, 120.0, 121.0):
        meter, clock, _ = at(account, now)
        drained.append((meter.empty_at - clock) / meter.step)
    assert 6000 - drained[0] == pytest.approx(100, rel=0.02), "at first all of it"
    assert drained[1] - drained[2] == pytest.approx(100 * (0.25 + 0.75 * math.exp(-1)), rel=0.02)
    assert drained[3] - drained[4] == pytest.approx(25, rel=0.06), "in the end the steady share"
    at(account, 1000.0)
    meter, clock, _ = at(account, 1010.0)
    meter.use(1000, clock)
    meter, clock, _ = at(account, 1011.0)
    assert 1000 - (meter.empty_at - clock) / meter.step == pytest.approx(100, rel=0.02)


AMOUNTS = st.integers(1, 50)


@given(
    st.lists(st.tuples(st.floats(0, 40), AMOUNTS), max_size=40),
    AMOUNTS,
    st.sampled_from([Rates(prompt=120), Rates(prompt=100, burst=1.0), Rates(prompt=120, steady=0.5, fade_s=20.0)]),
)
def test_who_waits_as_long_as_told_is_admitted(uses: list[tuple[float, int]], wanted: int, rates: Rates) -> None:
    account, now = Account("user", rates, 0.0), 0.0

    def fits(amount: int) -> bool:
        meter, clock, left = at(account, now)
        return meter.wait_s(amount, clock, left, rates.steady) == 0

    for pause, amount in uses:
        now += pause
        meter, clock, _ = at(account, now)
        if fits(amount):
            meter.use(amount, clock)
    meter, clock, left = at(account, now)
    assert fits(wanted) == (meter.remaining(clock, left) + 1e-3 > wanted)
    wait = meter.wait_s(wanted, clock, left, rates.steady)
    assert 0 <= wait <= 2 * WINDOW_S / rates.steady
    start = now
    if rates.steady == 1 and wait > 0.01:
        now = start + wait * 0.99 - 0.001
        assert not fits(wanted), "not earlier"
    now = start + wait + 1e-3
    assert fits(wanted)


def test_after_the_reset_nothing_counts() -> None:
    account = Account("user", Rates(prompt=100, burst=1.0), 0.0)
    meter, clock, left = at(account, 70.0)
    meter.use(90, clock)
    reset = meter.reset_s(clock, left, 1.0)
    assert reset == pytest.approx(110.0), "the rest of this window and all of the next"
    meter, clock, left = at(account, 70.0 + reset + 0.01)
    assert meter.remaining(clock, left) == pytest.approx(100, abs=0.01)
    assert meter.reset_s(clock, left, 1.0) == 0


def test_giving_back_never_gives_what_has_drained() -> None:
    account = Account("user", Rates(prompt=600, burst=1.0), 0.0)
    meter, clock, _ = at(account, 0.0)
    meter.use(100, clock)  # drains by 10.0
    meter, clock, _ = at(account, 5.0)
    meter.use(100, clock)
    meter.give_back(100, 5.0, 0)
    assert (meter.empty_at - clock) / meter.step == pytest.approx(100), "half of the first was free already"
    assert meter.current == 100
    meter.give_back(100, 500.0, 1)
    assert meter.current == 100
    assert (meter.empty_at - clock) / meter.step == pytest.approx(100)
