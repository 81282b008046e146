"""The lossy channel does what its conditions say."""

from __future__ import annotations

import random

import pytest

from node.bench.channel import Channel, Conditions, Weather


def channel(conditions: Conditions, seed: int = 1) -> Channel:
    rng = random.Random(seed)
    return Channel(conditions, Weather(conditions, rng), rng)


def test_a_clean_channel_only_delays() -> None:
    assert list(channel(Conditions(rtt=0.1)).carry(b"x", 5.0)) == [(5.05, b"x")]


def test_independent_loss_is_as_frequent_as_said() -> None:
    lossy = channel(Conditions(loss=0.1))
    came = sum(len(list(lossy.carry(b"x", i * 0.01))) for i in range(20_000))
    assert came == pytest.approx(18_000, rel=0.02)


@pytest.mark.parametrize("gap", [0.002, 0.02])
def test_bursts_are_clocked_by_time_whoever_sends_how_much(gap: float) -> None:
    lossy = channel(Conditions(loss=0.1, burst_s=0.06), seed=3)
    fates = [not list(lossy.carry(b"x", i * gap)) for i in range(int(2000 / gap))]
    assert sum(fates) / len(fates) == pytest.approx(0.1, rel=0.12)
    runs = [run for run in "".join("x" if lost else " " for lost in fates).split(" ") if run]
    assert sum(map(len, runs)) / len(runs) * gap == pytest.approx(0.06, rel=0.35)


def test_bad_moments_are_remembered() -> None:
    weather = Weather(Conditions(loss=0.1, burst_s=0.06), random.Random(3))
    lost = [i / 1000 for i in range(20_000) if weather.loses(i / 1000)]
    assert lost == [i / 1000 for i in range(20_000) if any(a <= i / 1000 < b for a, b in weather.moments)]
    assert weather.moments == sorted(weather.moments)


def test_a_slow_channel_queues_and_then_drops() -> None:
    slow = channel(Conditions(rtt=0.0, rate=1000, queue_s=0.5))
    arrivals = [at for _ in range(20) for at, _ in slow.carry(b"x" * 72, 0.0)]
    assert arrivals == pytest.approx([0.1 * (i + 1) for i in range(6)])
    assert slow.lost == 14
    assert slow.bytes == 2000


def test_an_outage_takes_everything() -> None:
    cut = channel(Conditions(outages=((1.0, 2.0),)))
    assert [bool(list(cut.carry(b"x", t))) for t in (0.9, 1.0, 1.9, 2.0)] == [True, False, False, True]


def test_packets_are_repeated_bent_and_shuffled() -> None:
    wild = channel(Conditions(duplicate=0.5, corrupt=0.5, reorder=0.5, jitter=0.01))
    came = [one for i in range(1000) for one in wild.carry(b"hello", float(i))]
    assert 1400 < len(came) < 1600
    bent = [data for _, data in came if data != b"hello"]
    assert 600 < len(bent) < 900
    assert all(sum((a ^ b).bit_count() for a, b in zip(data, b"hello", strict=True)) == 1 for data in bent)
    assert any(at % 1 > 0.045 for at, _ in came)
