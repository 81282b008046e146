"""Limits: all four or none, the bound in every window, honest headers, and constant memory."""

from __future__ import annotations

import bisect
import itertools
import random
import tracemalloc

import pytest

from node.admission.account import WINDOW_S, Rates
from node.admission.limits import Allowance, Limits, Reservation
from node.errors import RateLimited, TooLarge
from node.generation import Caller

ME = Caller("acme", "alice", "phone")


def reserve(
    limits: Limits, allowance: Allowance, prompt: int = 10, output: int = 10, now: float = 0.0, caller: Caller = ME
) -> Reservation:
    return limits.reserve(caller, "m", allowance, prompt, output, now)


def refused(limits: Limits, allowance: Allowance, **more: object) -> RateLimited:
    with pytest.raises(RateLimited) as refusal:
        reserve(limits, allowance, **more)  # type: ignore[arg-type]
    return refusal.value


def test_no_limits_no_accounts() -> None:
    limits = Limits()
    reservation = reserve(limits, Allowance(), prompt=10**9, output=10**9)
    assert reservation.output == 10**9
    assert reservation.headers(0.0) == {}
    assert len(limits) == 0


@pytest.mark.parametrize(
    ("scope", "shared", "apart"),
    [
        ("tenant", Caller("acme", "bob", "x"), Caller("other", "alice", "phone")),
        ("user", Caller("acme", "alice", "x"), Caller("acme", "bob", "phone")),
        ("model", Caller("acme", "alice", "x"), Caller("acme", "bob", "phone")),
        ("session", Caller("acme", "alice", "phone"), Caller("acme", "alice", "laptop")),
    ],
)
def test_each_scope_counts_what_it_should(scope: str, shared: Caller, apart: Caller) -> None:
    limits, allowance = Limits(), Allowance(**{scope: Rates(requests=2, burst=0.5)})
    reserve(limits, allowance)
    refused(limits, allowance)
    refused(limits, allowance, caller=shared)
    reserve(limits, allowance, caller=apart)


def test_a_model_has_a_limit_of_its_own() -> None:
    limits, allowance = Limits(), Allowance(model=Rates(requests=2, burst=0.5))
    limits.reserve(ME, "small", allowance, 1, 1, 0.0)
    limits.reserve(ME, "large", allowance, 1, 1, 0.0)
    with pytest.raises(RateLimited, match="this key's and model's limit of 2 requests"):
        limits.reserve(ME, "large", allowance, 1, 1, 0.0)


def test_the_broadest_limit_is_named_and_the_longest_is_waited_for() -> None:
    quick, slow = Rates(requests=60, burst=1 / 60), Rates(requests=2, burst=0.5)
    limits = Limits()
    reserve(limits, Allowance(tenant=quick, session=slow))
    refusal = refused(limits, Allowance(tenant=quick, session=slow))
    assert "the tenant's limit of 60 requests per minute" in refusal.message
    assert refusal.retry_after == 30
    assert (refusal.status, refusal.code) == (429, "rate_limit_exceeded")


def test_a_refusal_leaves_no_trace_in_any_account() -> None:
    limits = Limits()
    wide, narrow = Rates(requests=100, prompt=1000, burst=1.0), Rates(requests=2, burst=0.5)
    reserve(limits, Allowance(tenant=wide, session=narrow))
    for _ in range(50):
        refused(limits, Allowance(tenant=wide, session=narrow))
    headers = reserve(limits, Allowance(tenant=wide)).headers(0.0)
    assert headers["x-ratelimit-remaining-requests"] == "98"
    assert headers["x-ratelimit-remaining-tokens"] == "980"


def test_an_answer_is_cut_to_a_burst_and_a_longer_prompt_never_passes() -> None:
    limits, allowance = Limits(), Allowance(user=Rates(output=100, prompt=100), session=Rates(output=1000))
    assert reserve(limits, allowance, output=4096).output == 50
    with pytest.raises(TooLarge, match=r"51 tokens.*at most 50"):
        reserve(limits, allowance, prompt=51)


def test_what_an_answer_did_not_use_is_free_when_it_ends() -> None:
    limits, allowance = Limits(), Allowance(user=Rates(output=100))
    first = reserve(limits, allowance, output=50)
    refused(limits, allowance, output=1, now=300.0)
    first.settle(5, 300.0)
    assert reserve(limits, allowance, output=45, now=300.0).output == 45
    refused(limits, allowance, output=1, now=300.0)


def test_settling_twice_counts_once_and_never_more_than_was_reserved() -> None:
    limits, allowance = Limits(), Allowance(user=Rates(output=100))
    first = reserve(limits, allowance, output=20)
    first.settle(999, 0.0)
    first.settle(20, 0.0)
    first.cancel(0.0)
    assert reserve(limits, allowance, output=30, now=0.0).output == 30
    refused(limits, allowance, output=1)


def test_what_never_ran_costs_nothing() -> None:
    limits, allowance = Limits(), Allowance(user=Rates(requests=2, prompt=20, output=20))
    for _ in range(100):
        reserve(limits, allowance, prompt=10, output=10).cancel(0.0)
    reserve(limits, allowance, prompt=10, output=10).settle(10, 0.0)
    refused(limits, allowance, prompt=10, output=10)


def test_headers_tell_the_tightest_limit() -> None:
    limits = Limits()
    allowance = Allowance(
        tenant=Rates(requests=100, prompt=10_000, burst=1.0), user=Rates(requests=60, output=600, burst=1.0)
    )
    headers = reserve(limits, allowance, prompt=100, output=200, now=60.0).headers(60.0)
    assert headers == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "2m0s",
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "400",
        "x-ratelimit-reset-tokens": "2m0s",
    }
    refusal = refused(limits, Allowance(user=Rates(requests=60, output=600, burst=1.0)), output=600, now=60.0)
    assert refusal.headers["x-ratelimit-remaining-tokens"] == "400"
    assert refusal.retry_after >= 1


def test_who_comes_back_when_told_is_admitted() -> None:
    limits, allowance = Limits(), Allowance(user=Rates(requests=6, prompt=300, output=300))
    chance, now, told = random.Random(5), 0.0, 0
    for _ in range(300):
        prompt, output = chance.randint(1, 100), chance.randint(1, 100)
        try:
            reserve(limits, allowance, prompt, output, now).settle(chance.randint(0, output), now)
        except RateLimited as refusal:
            told += 1
            now += refusal.retry_after or 0
            reserve(limits, allowance, prompt, output, now).settle(output, now)
        now += chance.expovariate(0.5)
    assert told > 50


def most_in_a_window(events: list[tuple[float, float]]) -> float:
    """The most that fell into any minute, looked at from every event's instant."""
    events = sorted(events)
    times = [time for time, _ in events]
    sums = [0.0, *itertools.accumulate(amount for _, amount in events)]
    return max(
        (
            sums[index + 1] - sums[bisect.bisect_right(times, time - WINDOW_S + 1e-9)]
            for index, time in enumerate(times)
        ),
        default=0.0,
    )


RATES = [
    Rates(requests=30, prompt=900, output=600),
    Rates(requests=40, prompt=2000, output=1500, burst=1.0),
    Rates(requests=50, prompt=1500, output=900, burst=0.2, steady=0.4, fade_s=45.0),
]


@pytest.mark.parametrize("seed", range(6))
def test_no_window_sees_more_than_the_cap_and_a_burst(seed: int) -> None:
    """An impatient crowd against an oracle that knows every token's moment, whether it asks evenly or in waves."""
    chance = random.Random(seed)
    rates = RATES[seed % len(RATES)]
    limits, allowance = Limits(), Allowance(*([rates] * 4))
    used: dict[tuple[str, ...], dict[str, list[tuple[float, float]]]] = {}
    running: list[tuple[float, Reservation, int]] = []
    now, admitted = 0.0, 0
    while now < 600:
        wave = seed < 3 or int(now / 20) % 3 == 0
        now += chance.expovariate(20.0 if wave else 0.2)
        for end in sorted(running, key=lambda run: run[0]):
            if end[0] <= now:
                running.remove(end)
                end[1].settle(end[2], end[0] if chance.random() < 0.5 else now)
        caller = Caller("acme", chance.choice("ab"), chance.choice("xyz"))
        prompt, most = chance.randint(1, 200), chance.randint(1, 200)
        try:
            reservation = limits.reserve(caller, "m", allowance, prompt, most, now)
        except (RateLimited, TooLarge):
            continue
        if chance.random() < 0.1:
            reservation.cancel(now + 0)
            continue
        admitted += 1
        tokens = chance.randint(0, reservation.output)
        seconds = chance.uniform(0, 40)
        running.append((now + seconds, reservation, tokens))
        for key in (("t",), ("u", caller.user), ("m", caller.user), ("s", caller.user, caller.session)):
            events = used.setdefault(key, {"requests": [], "prompt": [], "output": []})
            events["requests"].append((now, 1))
            events["prompt"].append((now, prompt))
            events["output"] += [(now + seconds * (index + 1) / (tokens + 1), 1) for index in range(tokens)]
    assert admitted > 50
    for key, events in used.items():
        for quantity in ("requests", "prompt", "output"):
            cap, burst = rates.cap(quantity), rates.most(quantity)  # type: ignore[arg-type]
            assert cap is not None
            assert burst is not None
            assert most_in_a_window(events[quantity]) <= cap + burst, (key, quantity)


def test_a_patient_crowd_gets_nearly_all_of_its_cap() -> None:
    limits, allowance, chance = Limits(), Allowance(user=Rates(prompt=6000)), random.Random(1)
    now = total = 0.0
    while now < 1200:
        now += chance.expovariate(10)
        try:
            reserve(limits, allowance, prompt=50, now=now)
        except RateLimited:
            continue
        total += 50
    assert 0.9 * 6000 <= total / 20 <= 1.03 * 6000


def test_keys_with_nothing_to_remember_are_dropped() -> None:
    limits, allowance = Limits(), Allowance(session=Rates(requests=60))
    for number in range(5000):  # ten a second, each remembered for two minutes at most
        reserve(limits, allowance, now=number / 10, caller=Caller("acme", "alice", str(number)))
    assert len(limits) < 1500
    limits.forget_idle(10_000.0, most=10_000)
    assert len(limits) == 0


def test_a_flood_of_sessions_shares_an_account_and_never_washes_out_another() -> None:
    limits, allowance = (
        Limits(most_keys=100),
        Allowance(user=Rates(requests=6000), session=Rates(requests=2, burst=0.5)),
    )
    reserve(limits, allowance)
    outcomes = []
    for number in range(500):
        try:
            reserve(limits, allowance, caller=Caller("acme", "alice", str(number)))
            outcomes.append(True)
        except RateLimited:
            outcomes.append(False)
    assert len(limits) <= 102
    assert outcomes.count(True) < 102, "beyond the room they count together"
    refused(limits, allowance)  # the first session is still remembered
    reserve(limits, allowance, caller=Caller("acme", "bob", "first"))


def test_a_key_costs_constant_memory() -> None:
    limits, allowance = Limits(), Allowance(*([Rates(requests=1e6, prompt=1e9, output=1e9)] * 4))
    caller = Caller("acme", "alice", "phone")
    for number in range(1000):
        reserve(limits, allowance, now=number / 100, caller=caller).settle(5, number / 100)
    tracemalloc.start()
    for number in range(5000):
        reserve(limits, allowance, now=10 + number / 100, caller=caller).settle(5, 10 + number / 100)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 5000


def test_changed_rates_begin_anew() -> None:
    limits = Limits()
    reserve(limits, Allowance(user=Rates(requests=2)))
    refused(limits, Allowance(user=Rates(requests=2)))
    reserve(limits, Allowance(user=Rates(requests=4)))
    assert len(limits) == 1
