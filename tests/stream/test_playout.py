"""A flow out of bursts: everything in order, at once on a clean link, and through silences like the last ones."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.bench.pacing import play
from node.stream.playout import MOST_S, READING_RATE, Playout
from node.stream.quality import stall_ratio

EVEN = [number / 20 for number in range(400)]


def bursts(silence_s: float, every_s: float, seconds: float) -> list[float]:
    """20 tokens a second, held up for `silence_s` at the end of every `every_s`."""
    made = [number / 20 for number in range(int(seconds * 20))]
    return [max(at, math.floor(at / every_s) * every_s + silence_s) for at in made]


def test_on_a_clean_link_text_is_shown_the_moment_it_comes() -> None:
    assert play(EVEN, Playout()) == EVEN


def test_a_little_jitter_costs_nothing() -> None:
    came = [at + 0.02 * (number % 3) for number, at in enumerate(EVEN)]
    playout = Playout()
    assert play(came, playout) == came
    assert playout.horizon_s == 0


def test_silences_like_the_ones_before_are_bridged() -> None:
    came = bursts(1.5, 5, 60)
    shown = play(came, Playout())
    later = sum(at < 12 for at in came)
    assert stall_ratio(came) > 0.2
    assert stall_ratio(shown[later:]) < 0.02


def test_the_horizon_stays_below_its_cap_and_the_silence() -> None:
    playout = Playout()
    play(bursts(1.5, 5, 30), playout)
    assert 0.5 < playout.horizon_s < 1.5
    play(bursts(30, 60, 240), playout)
    assert playout.horizon_s == MOST_S


def test_a_silence_is_forgotten() -> None:
    playout = Playout()
    play([0.0, 0.05, 2.0, *(2 + number / 20 for number in range(1, 40))], playout)
    high = playout.horizon_s
    play([100 + number / 20 for number in range(4800)], playout)
    assert playout.horizon_s < high / 4


def test_what_was_learnt_serves_the_next_answer() -> None:
    playout = Playout()
    play(bursts(1.5, 5, 30), playout)
    came = [100 + at for at in bursts(1.5, 5, 10)]
    assert stall_ratio(play(came, playout)) < 0.5 * stall_ratio(came)


def test_the_first_token_is_never_held_back() -> None:
    playout = Playout()
    play(bursts(3, 5, 30), playout)
    playout.begin()
    playout.put(0, "word ", 50.0)
    assert playout.take(50.0) == [(0, "word ")]


def test_while_nothing_comes_the_flow_never_falls_below_reading_speed() -> None:
    playout = Playout()
    play(bursts(3, 5, 30), playout)
    playout.begin()
    for number in range(40):
        playout.put(number, "word ", 100.0)
    shown, now = [], 100.0
    while (due := playout.next_at(now)) is not None:
        now = due
        shown += [now] * len(playout.take(now))
    gaps = [after - before for before, after in itertools.pairwise(shown)]
    assert max(gaps) <= 1 / READING_RATE + 1e-9
    assert gaps == sorted(gaps)  # it slows down smoothly
    assert shown[-1] - shown[0] > playout.horizon_s


def test_after_the_end_the_rest_comes_soon() -> None:
    playout = Playout()
    play(bursts(6, 10, 60), playout)
    playout.begin()
    for number in range(200):
        playout.put(number, "word ", 100.0)
    playout.take(100.0)
    playout.finish(100.0)
    now = 100.0
    while (due := playout.next_at(now)) is not None:
        now = due
        playout.take(now)
    assert now == pytest.approx(101, abs=0.05)


def test_a_long_piece_comes_word_by_word() -> None:
    playout = Playout()
    play(bursts(1.5, 5, 30), playout)
    playout.begin()
    playout.put(7, "What a\nlagging reader  missed.", 100.0)
    shown, now = [], 100.0
    while (due := playout.next_at(now)) is not None:
        now = due
        shown += playout.take(now)
    assert len(shown) == 5
    assert now > 100
    assert "".join(text for _, text in shown) == "What a\nlagging reader  missed."
    assert {seq for seq, _ in shown} == {7}


def test_nothing_is_due_when_nothing_waits() -> None:
    playout = Playout()
    assert playout.next_at(1.0) is None
    assert playout.take(1.0) == []
    playout.finish(1.0)
    assert playout.next_at(1.0) is None


@given(st.lists(st.tuples(st.floats(0, 8), st.text(max_size=40), st.floats(0, 3)), max_size=60))
def test_any_schedule(steps: list[tuple[float, str, float]]) -> None:
    """Nothing lost, nothing reordered, never before it came, and an end."""
    playout, now, put, taken = Playout(), 0.0, [], []
    for number, (wait, text, look) in enumerate(steps):
        now += wait
        put.append((number, text))
        playout.put(number, text, now)
        now += look
        due = playout.next_at(now)
        assert due is None or due >= now
        taken += playout.take(now)
    playout.finish(now)
    for _ in range(10_000):
        if (due := playout.next_at(now)) is None:
            break
        assert due <= now + 1 / READING_RATE + 1e-9
        now = due
        taken += playout.take(now)
    assert "".join(text for _, text in taken) == "".join(text for _, text in put)
    assert [seq for seq, _ in taken] == sorted(seq for seq, _ in taken)
    assert playout.horizon_s == pytest.approx(min(max(playout.horizon_s, 0), MOST_S))
