"""Estimates of a path, from packets whose fate the test decides."""

from __future__ import annotations

import math
import random

import pytest

from node.link.packet import Ack
from node.link.path import LEAST_RATE, Path, _Arrived, _Floor


class Driver:
    """Sends packets one by one and acknowledges what came."""

    def __init__(self, rtt: float = 0.1, gap: float = 0.02) -> None:
        self.path, self.rtt, self.gap = Path(), rtt, gap
        self.now, self.number = 0.0, 0
        self.seen: set[int] = set()

    def packet(self, lost: bool, size: int = 100, rtt: float | None = None) -> None:
        self.path.sent(self.number, size, self.now)
        if not lost:
            self.seen.add(self.number)
            bits = sum(1 << i for i in range(64) if self.number - 1 - i in self.seen)
            self.path.acked(Ack(self.number, 0.0, bits), self.now + (rtt or self.rtt))
        self.number += 1
        self.now += self.gap


def test_loss_is_learned_and_forgotten() -> None:
    driver, rng = Driver(), random.Random(1)
    for _ in range(600):
        driver.packet(rng.random() < 0.1)
    assert driver.path.loss == pytest.approx(0.1, abs=0.08)
    assert driver.path.packets_lost == pytest.approx(60, abs=25)
    for _ in range(600):
        driver.packet(False)
    assert driver.path.loss < 0.001


def test_round_trips() -> None:
    driver = Driver(rtt=0.25)
    assert driver.path.rate == LEAST_RATE
    for _ in range(50):
        driver.packet(False)
    assert driver.path.srtt == pytest.approx(0.25)
    assert driver.path.min_rtt == pytest.approx(0.25)
    assert driver.path.pto == pytest.approx(0.27, abs=0.01)
    assert not driver.path.tight


def test_bursts_are_told_from_single_losses() -> None:
    single, burst = Driver(), Driver()
    for i in range(1000):
        single.packet(i % 20 == 0)
        burst.packet(i % 60 in (0, 1, 2))
    assert single.path.mean_burst == pytest.approx(1.0)
    assert single.path.burst_q95 == 1
    assert burst.path.mean_burst == pytest.approx(3.0)
    assert burst.path.burst_q95 == 3


def test_a_packet_is_lost_only_when_three_later_ones_came() -> None:
    path = Path()
    for number in range(6):
        path.sent(number, 100, number * 0.01)
    path.acked(Ack(2, 0.0, 0b10), 0.1)  # 2 and 0
    assert path.packets_lost == 0
    path.acked(Ack(4, 0.0, 0b1010), 0.12)  # 4, 2 and 0: 1 is lost, 3 may still come
    assert path.packets_lost == 1
    path.acked(Ack(5, 0.0, 0b111), 0.13)
    assert path.packets_lost == 1


def test_an_acknowledgement_answers_once() -> None:
    path = Path()
    path.sent(0, 100, 1.0)
    assert path.acked(Ack(0, 0.0, 0), 1.1) == 1.0
    assert path.acked(Ack(0, 0.0, 0), 1.2) is None
    assert path.acked(Ack(77, 0.0, 0), 1.2) is None


def test_the_rate_follows_the_equation_of_rfc_5348() -> None:
    driver = Driver(rtt=0.1, gap=0.05)
    for i in range(2000):
        driver.packet(i % 50 == 0)
    p, rtt = 1 / 50, 0.1
    root = math.sqrt(2 * p / 3)
    equation = 1460 / (rtt * (root + 12 * math.sqrt(3 * p / 8) * p * (1 + 32 * p * p)))
    assert driver.path.rate == pytest.approx(2 * equation, rel=0.05)


def test_losses_within_a_round_trip_are_one_event() -> None:
    spread, together = Driver(rtt=0.5, gap=0.02), Driver(rtt=0.5, gap=0.02)
    for i in range(2000):
        spread.packet(i % 50 == 0)
        together.packet(i % 200 in (0, 2, 4, 6))
    assert together.path.packets_lost == spread.path.packets_lost
    assert together.path.rate > 1.5 * spread.path.rate


def test_a_growing_queue_limits_the_rate_until_it_is_gone() -> None:
    driver = Driver(rtt=0.1, gap=0.1)
    for _ in range(40):
        driver.packet(False)
    for i in range(60):
        driver.packet(False, rtt=0.1 + 0.01 * i)
    assert driver.path.tight
    assert driver.path.rate == pytest.approx(0.75 * 1280, rel=0.25)
    for _ in range(20):
        driver.packet(False)
    assert driver.path.rate > 0.9 * 1280


def test_a_machine_that_is_late_now_and_then_is_no_full_path() -> None:
    driver, rng = Driver(rtt=0.15, gap=0.02), random.Random(4)
    for _ in range(1000):
        driver.packet(False, rtt=0.15 + rng.choice([0.0, 0.0, 0.2, 0.3]))
        assert not driver.path.tight


def late_reader(path: Path, *, stamped: bool) -> None:
    """Acknowledgements that come after 20 ms are read in turns that take longer and longer, as a busy loop reads."""
    for number in range(120):
        sent = number * 0.1
        path.sent(number, 100, sent)
        came = sent + 0.02
        path.acked(Ack(number, 0.0, (1 << min(64, number)) - 1), came + 0.005 * number, came if stamped else None)


def test_what_is_read_late_did_not_queue_on_the_way() -> None:
    knows, guesses = Path(), Path()
    late_reader(knows, stamped=True)
    late_reader(guesses, stamped=False)
    assert guesses.tight, "it looks just like a queue"
    assert not knows.tight
    assert knows.min_rtt == pytest.approx(0.02)
    assert knows.srtt == guesses.srtt, "who waits for an answer waits for its reader, too"
    assert knows.pto == guesses.pto > 0.3


def test_a_busy_end_is_given_more_time() -> None:
    """It was late on no purpose: its packets did not queue, but whoever waits for it waits so long."""
    prompt, busy = Path(), Path()
    for number in range(100):
        for path, delay in ((prompt, 0.3), (busy, 1.0)):
            path.sent(number, 100, 2.0 * number)
            path.acked(Ack(number, delay, (1 << min(64, number)) - 1), 2.0 * number + 0.02 + delay)
    assert prompt.srtt == pytest.approx(0.02)
    assert busy.srtt == pytest.approx(0.02 + 0.65)
    assert busy.min_rtt == pytest.approx(0.02)
    assert not busy.tight


class Narrow:
    """A bottleneck of `rate` bytes a second; packets of 100 bytes leave as the path's own limit allows."""

    def __init__(self, rate: float, delay: float = 0.3) -> None:
        self.path, self.rate, self.delay = Path(), rate, delay
        self.free_at = self.now = 0.0
        self.number, self.queue = 0, 0.0
        self.flying: list[tuple[float, int]] = []
        self.seen = 0

    def run(self, seconds: float, size: int = 72) -> None:
        until = self.now + seconds
        while self.now < until:
            self.path.sent(self.number, size, self.now)
            self.free_at = max(self.free_at, self.now) + (size + 28) / self.rate
            self.queue = self.free_at - self.now - (size + 28) / self.rate
            self.flying.append((self.free_at + self.delay, self.number))
            self.number += 1
            self.now += (size + 28) / min(self.path.rate, 2000.0)
            while self.flying and self.flying[0][0] <= self.now:
                when, number = self.flying.pop(0)
                bits = (1 << min(64, number)) - 1
                self.path.acked(Ack(number, 0.0, bits), when)


@pytest.mark.parametrize("rate", [600.0, 1200.0, 1900.0])
def test_a_narrow_path_is_filled_and_no_more(rate: float) -> None:
    narrow = Narrow(rate)
    narrow.run(30)
    assert narrow.path.tight
    waits = []
    for _ in range(100):
        narrow.run(0.5)
        waits.append(narrow.queue)
    assert max(waits) < 0.02
    assert narrow.path.rate == pytest.approx(rate, rel=0.03)


def test_a_narrow_path_that_becomes_narrower_is_noticed() -> None:
    narrow = Narrow(1800)
    narrow.run(30)
    narrow.rate = 600.0
    narrow.run(20)
    assert narrow.queue < 0.1
    assert narrow.path.rate == pytest.approx(600, rel=0.15), "each packet takes longer, which may be a queue"
    narrow.run(30)
    assert narrow.path.rate == pytest.approx(600, rel=0.02)


def test_a_pause_changes_nothing_but_the_queue() -> None:
    narrow = Narrow(600.0)
    narrow.run(30)
    for _ in range(10):
        narrow.now += 12.0
        before = narrow.path.rate
        narrow.run(3)
        assert narrow.path.rate == pytest.approx(before, rel=0.03)
        assert narrow.queue < 0.03


def test_a_queue_is_gone_after_a_silence() -> None:
    path = Path()
    for number in range(60):
        path.sent(number, 72, number * 0.1)
        path.acked(Ack(number, 0.0, (1 << min(64, number)) - 1), number * 0.1 + 0.3 + 0.02 * number)
    assert path.tight
    limit = path.rate
    path.sent(60, 72, 12.0)
    path.acked(Ack(60, 0.0, 2**60 - 1), 12.3)
    assert path.rate > 1.3 * limit


def test_a_longer_packet_takes_its_time() -> None:
    floor = _Floor()
    assert floor.above(0.3 + 60 / 600, 60, 600.0, 0.0) == pytest.approx(0.0)
    assert floor.above(0.3 + 100 / 600 + 0.02, 100, 600.0, 1.0) == pytest.approx(0.02)
    assert floor.above(0.3 + 60 / 600 + 0.03, 60, 600.0, 2.0) == pytest.approx(0.03)


def test_a_shorter_packet_did_not_wait_because_a_longer_one_was_as_quick() -> None:
    """The path carries far more than is thought: nothing must tell of a queue."""
    floor = _Floor()
    assert floor.above(0.06, 1100, 200.0, 0.0) == pytest.approx(0.0)
    assert floor.above(0.06, 60, 200.0, 1.0) <= 0.0


@pytest.mark.parametrize("delay", [0.06, 0.6])
def test_a_path_that_was_full_for_some_seconds_is_used_again(delay: float) -> None:
    narrow = Narrow(40e3, delay)
    narrow.run(20)
    narrow.rate = 300.0
    narrow.run(6)
    assert narrow.path.tight
    narrow.rate = 40e3
    narrow.free_at = narrow.now
    for _ in range(120):  # what gathered leaves in long packets, and short ones follow
        narrow.run(0.1, 400)
        narrow.run(0.5, 40)
    assert narrow.path.rate > 1000


def test_what_came_after_a_silence_is_counted_from_there() -> None:
    """A client that asks now and then learns how narrow its path is from one request's packets alone."""
    arrived = _Arrived()
    for start in (0.0, 20.0):
        for number in range(6):
            arrived.total += 120
            arrived.mark(start + number * 0.2)
            rate = arrived.capacity(start + number * 0.2, 0.6, full=True)
    assert rate == pytest.approx(600)


def test_a_limit_that_is_not_used_goes_away() -> None:
    narrow = Narrow(600.0)
    narrow.run(30)
    narrow.rate = 1e6
    narrow.now = narrow.now + 5
    for _ in range(200):
        narrow.run(0.01)
        narrow.now += 0.5  # 200 bytes a second: nobody could see what more it bears
    assert not narrow.path.tight


def test_a_late_acknowledgement_says_when_it_was_all_the_same() -> None:
    """The way back had a queue, and has none any more: that is no capacity."""
    path = Path()
    for number in range(40):
        path.sent(number, 72, number * 0.1)
        held = max(0.0, 2.0 - number * 0.05)
        path.acked(Ack(number, held, (1 << min(64, number)) - 1), number * 0.1 + 0.3 + held)
    assert path._arrived.capacity(4.3, path.srtt, full=False) == pytest.approx(1000, rel=0.02)


def test_what_nobody_speaks_of_is_lost_and_forgotten() -> None:
    path = Path()
    for number in range(1000):
        path.sent(number, 100, number * 0.01)
    assert len(path._flying) <= 256
    assert path.loss > 0.9


def test_which_paths_are_given_few_bytes() -> None:
    fast, slow, full = Path(), Path(), Narrow(900.0)
    assert fast.narrow, "nothing is known"
    for path, trip in ((fast, 0.6), (slow, 1.2)):
        path.sent(0, 72, 0.0)
        path.acked(Ack(0, 0.0, 0), trip)
    full.run(30)
    assert (fast.narrow, slow.narrow, full.path.narrow) == (False, True, True)
