"""What leaves next: pacing, turns, flights."""

from __future__ import annotations

import math

import pytest

from node.link import packet
from node.link.departures import SILENT_S, Departures, Stream
from node.link.packet import Ack, Block, Data, Flight, Got
from node.link.path import LEAST_RATE, OVERHEAD
from node.link.receiver import Receiver
from node.link.sender import Sender


def departures(*slots: int) -> Departures:
    out = Departures()
    for slot in slots:
        out.streams[slot] = Stream(Sender(slot), Receiver(slot))
    return out


def say(out: Departures, slot: int, chunk: bytes, now: float) -> None:
    out.wake(slot).sender.push(chunk)
    out.streams[slot].schedule.news(now)


def slots(blocks: list[Block]) -> list[int]:
    return [block.slot for block in blocks if isinstance(block, Data)]


def measured(out: Departures, rtt: float = 0.05) -> None:
    out.left(0, 100, True, 0.0)
    out.path.acked(Ack(0, 0.0, 0), rtt)


def full(out: Departures) -> None:
    """Let the path be one that delays more and more."""
    seen = 0
    for number in range(1, 60):
        out.path.sent(number, 100, number * 0.1)
        seen = seen << 1 | 1
        out.path.acked(Ack(number, 0.0, seen >> 1), number * 0.1 + 0.05 + number * 0.02)
    assert out.path.tight


def test_nothing_is_due_without_news() -> None:
    out = departures(0)
    assert out.next_at(1.0) == math.inf
    assert out.news(1.0, 1000, flights=True) == []


def test_several_replies_share_a_packet_the_longest_due_first() -> None:
    out = departures(0, 1, 2)
    say(out, 2, b"c", 1.0)
    say(out, 0, b"a", 1.1)
    assert slots(out.news(1.2, 1000, flights=True)) == [2, 0]


def test_a_small_room_takes_the_first_only() -> None:
    out = departures(0, 1)
    say(out, 1, b"x" * 60, 1.0)
    say(out, 0, b"y" * 60, 1.1)
    assert slots(out.news(1.2, 100, flights=True)) == [1]
    assert slots(out.news(1.2, 100, flights=True)) == [0]


def test_the_rate_spaces_packets() -> None:
    out = departures(0)
    size = 1172
    for number in range(10):
        say(out, 0, b"x", 1.0 + number * 1e-6)
        out.left(number, size, True, 1.0)
    waits = out.next_at(1.0) - 1.0
    assert waits == pytest.approx(10 * (size + OVERHEAD) / LEAST_RATE - 1.0, abs=0.01)
    assert out.news(1.0, 1000, flights=True) == []
    assert slots(out.news(1.0 + waits + 1e-9, 1000, flights=True)) == [0]


def test_a_backlog_becomes_a_flight_spread_over_time() -> None:
    out = departures(0)
    measured(out)
    for _ in range(300):
        say(out, 0, b"x" * 20, 1.0)
    pieces: list[tuple[float, Flight]] = []
    now = 1.0
    while len(pieces) < 8 and now < 2.0:
        for block in out.news(now, 1175, flights=True):
            assert isinstance(block, Flight)
            pieces.append((now, block))
            out.left(len(pieces), len(packet.encode(block)) + 25, True, now)
        now = max(now + 1e-4, min(out.next_at(now), now + 0.1))
    assert [piece.index for _, piece in pieces] == list(range(8))
    assert pieces[-1][0] - pieces[0][0] >= 0.008
    assert pieces[0][1].parity >= 1


def test_no_flight_where_it_may_not_be_or_does_not_fit() -> None:
    out = departures(0)
    measured(out)
    for _ in range(300):
        say(out, 0, b"x" * 20, 1.0)
    assert slots(out.news(1.0, 500, flights=False)) == [0]
    assert out.streams[0].sender.backlog > 0
    out.news(1.1, 1175, flights=True)
    assert not any(isinstance(block, Flight) for block in out.news(1.2, 500, flights=True))


def test_after_a_long_silence_news_wait_for_a_timeout() -> None:
    out = departures(0)
    measured(out)
    say(out, 0, b"a", 1.0)
    out.news(1.0, 1000, flights=True)
    out.left(1, 60, True, 1.0)
    late = 1.0 + SILENT_S + 0.1
    out.left(2, 60, True, late)
    say(out, 0, b"b", late)
    assert out.next_at(late) == late + 1.0
    out.answered(late)
    assert out.next_at(late) == late


def test_a_new_reply_is_not_held_up_by_an_answer_that_got_lost_long_ago() -> None:
    out = departures(0, 1)
    measured(out)
    say(out, 0, b"a", 1.0)
    out.news(1.0, 1000, flights=True)
    out.left(1, 60, True, 1.0)
    out.streams[0].sender.got(Got(0, 1), 1.0)  # heard of by other words than that packet's own acknowledgement
    say(out, 1, b"b", 60.0)
    assert out.next_at(60.0) == 60.0


def test_what_was_passed_over_is_sent_again() -> None:
    out = departures(0, 1)
    measured(out)
    out.path.loss = 0.0
    say(out, 0, b"lost", 1.0)
    assert slots(out.news(1.0, 1000, flights=True)) == [0]
    out.left(1, 60, True, 1.0)
    out.passed_over(1.01, 1.06)
    assert out.next_at(1.06) > 1.06, "that may be disorder"
    out.passed_over(1.03, 1.08)
    assert slots(out.news(1.08, 1000, flights=True)) == [0]
    out.passed_over(1.03, 1.09)
    assert out.next_at(1.09) > 1.09, "once is enough"


def test_on_a_full_path_acknowledgements_take_their_time_but_hold_up_nothing_for_good() -> None:
    out = departures(0)
    measured(out)
    out.left(1, 60, False, 1.0)
    say(out, 0, b"a", 1.0)
    assert out.next_at(1.0) == 1.0
    full(out)
    takes = 100 / out.path.rate
    out.left(2, 72, False, 8.0)
    assert out.next_at(8.0) == pytest.approx(8.0 + takes - 0.01)
    out.left(2, 72, False, 8.0)
    assert out.next_at(8.0) == pytest.approx(8.0 + 2 * takes - 0.01)
    for _ in range(99):
        out.left(2, 72, False, 8.0)
    assert 8.4 < out.next_at(8.0) < 8.4 + takes


def test_a_path_of_which_nothing_is_known_may_be_narrow() -> None:
    out = departures(0)
    say(out, 0, b"a", 1.0)
    out.news(1.0, 1000, flights=True)
    out.left(0, 60, True, 1.0)
    assert out.next_at(1.0) == pytest.approx(1.0 + out.path.pto), "neither copies nor a tail"


def test_replies_that_are_over_cost_nothing_more() -> None:
    out = departures(*range(200))
    for slot in range(200):
        say(out, slot, b"a", 1.0)
        assert out.unacknowledged() == 1
        out.streams[slot].sender.finish()
        out.news(1.0, 1000, flights=True)
        out.streams[slot].sender.got(Got(slot, 1, whole=True), 1.0)
    out.wake(7)
    assert out.next_at(2.0) == math.inf
    assert out.unacknowledged() == 0
    assert not out._busy, "no timer looks at them"
