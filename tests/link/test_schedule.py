"""The plan of a reply's packets: news, copies, tail, timeouts."""

from __future__ import annotations

import pytest

from node.link.schedule import COPY_S, MAX_PTO_S, SHORT_TAIL_S, TAIL_S, Kind, Schedule, copies


@pytest.mark.parametrize(
    ("loss", "count"), [(0.0, 0), (0.002, 0), (0.01, 1), (0.05, 1), (0.1, 2), (0.2, 3), (0.5, 3), (1.0, 3)]
)
def test_how_many_copies(loss: float, count: int) -> None:
    assert copies(loss) == count


def planned(schedule: Schedule, now: float, count: int) -> list[tuple[float, Kind]]:
    """The next `count` packets, as they would be sent."""
    out = []
    for _ in range(count):
        when, kind = schedule.due(0.1)
        out.append((round(when - now, 6), kind))
        schedule.sent(kind, when, False)
    return out


def test_news_go_at_once_then_copies_then_a_tail_after_the_end() -> None:
    schedule = Schedule()
    schedule.news(10.0)
    assert schedule.due(0.1) == (10.0, Kind.NEWS)
    schedule.sent(Kind.NEWS, 10.0, False)
    schedule.plan(10.0, loss=0.1, burst=1.0, ended=True, pressed=False)
    expected = [(COPY_S, Kind.COPY), (2 * COPY_S, Kind.COPY), *((offset, Kind.REPEAT) for offset in TAIL_S)]
    assert planned(schedule, 10.0, 8) == expected


def test_a_pause_is_a_tail_that_begins_after_two_gaps() -> None:
    schedule = Schedule()
    for i in range(60):
        schedule.news(10 + i * 0.02)
        schedule.sent(Kind.NEWS, 10 + i * 0.02, False)
    last = 10 + 59 * 0.02
    schedule.plan(last, loss=0.0, burst=1.0, ended=False, pressed=False)
    when, kind = schedule.due(0.1)
    assert kind is Kind.REPEAT
    assert when - last == pytest.approx(0.04 + TAIL_S[0], abs=1e-3)


def test_in_bursts_copies_are_spread_over_the_gap() -> None:
    schedule = Schedule()
    schedule.news(10.0)
    schedule.sent(Kind.NEWS, 10.0, False)
    schedule.plan(10.0, loss=0.05, burst=3.0, ended=False, pressed=False)
    copies_at = [when for when, kind in planned(schedule, 10.0, 2)]
    assert copies_at == pytest.approx([0.05 / 3, 0.1 / 3], abs=1e-6)


def test_a_narrow_path_gets_one_repeat_of_the_end_and_nothing_else() -> None:
    schedule = Schedule()
    schedule.news(10.0)
    schedule.sent(Kind.NEWS, 10.0, False)
    schedule.plan(10.0, loss=0.05, burst=1.0, ended=False, pressed=True, tail=SHORT_TAIL_S)
    assert planned(schedule, 10.0, 1) == [(0.1, Kind.REPEAT)], "the timeout"
    schedule.news(20.0)
    schedule.sent(Kind.NEWS, 20.0, False)
    schedule.plan(20.0, loss=0.05, burst=1.0, ended=True, pressed=True, tail=SHORT_TAIL_S)
    assert planned(schedule, 20.0, 2)[0] == (SHORT_TAIL_S[0], Kind.REPEAT)


def test_a_pressed_path_gets_no_copies() -> None:
    schedule = Schedule()
    schedule.news(10.0)
    schedule.sent(Kind.NEWS, 10.0, False)
    schedule.plan(10.0, loss=0.2, burst=1.0, ended=False, pressed=True)
    assert schedule.due(0.1)[1] is Kind.REPEAT


def test_timeouts_grow_and_start_afresh_with_progress() -> None:
    schedule = Schedule()
    schedule.news(0.0)
    schedule.sent(Kind.NEWS, 0.0, False)
    at, waits = 0.0, []
    for _ in range(10):
        when, kind = schedule.due(0.1)
        waits.append(when - at)
        schedule.sent(kind, when, False)
        at = when
    assert waits == pytest.approx([min(MAX_PTO_S, 0.1 * 1.5**i) for i in range(10)])
    schedule.progress()
    assert schedule.due(0.1)[0] - at == pytest.approx(0.1)


def test_news_replace_the_plan_and_stay_due_while_more_waits() -> None:
    schedule = Schedule()
    schedule.news(0.0)
    schedule.sent(Kind.NEWS, 0.0, False)
    schedule.plan(0.0, loss=0.1, burst=1.0, ended=False, pressed=False)
    schedule.news(0.001)
    schedule.news(0.002)
    assert schedule.due(0.1) == (0.001, Kind.NEWS)
    schedule.sent(Kind.NEWS, 0.002, True)
    assert schedule.due(0.1)[1] is Kind.NEWS
    schedule.sent(Kind.NEWS, 0.003, False)
    schedule.repeat(0.004)
    assert schedule.due(0.1) == (0.004, Kind.REPEAT)
    schedule.settled()
    assert schedule.due(0.1)[0] == pytest.approx(0.103)


def test_copies_are_bounded_to_120_a_second() -> None:
    schedule = Schedule()
    allowed = sum(schedule.may_copy(10 + i / 1000) for i in range(2000))
    assert 240 <= allowed <= 249
