"""The heartbeat against a clock that the test turns."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.server.heartbeat import CLOSE_MISSES, SUSPECT_MISSES, Act, Heartbeat, State


def opened(period_s: float = 1.0) -> Heartbeat:
    heart = Heartbeat(period_s)
    heart.opened(0.0)
    return heart


def test_a_connection_opens_idle_and_is_open_while_something_runs() -> None:
    heart = Heartbeat(1.0)
    assert heart.state is State.CONNECTING
    assert not heart.alive
    assert heart.tick(100.0) is Act.NOTHING, "nobody is pinged before the handshake"
    heart.opened(0.0)
    assert heart.state is State.IDLE
    heart.runs(2)
    assert heart.state is State.OPEN
    heart.runs(1)
    assert heart.state is State.OPEN
    heart.runs(0)
    assert heart.state is State.IDLE
    heart.closing()
    assert heart.state is State.CLOSING
    heart.closed()
    assert heart.state is State.CLOSED


def test_pings_go_out_once_a_period() -> None:
    heart = opened()
    assert heart.due(0.25) == 0.75
    assert heart.tick(0.9) is Act.NOTHING
    assert heart.tick(1.0) is Act.PING
    assert heart.tick(1.5) is Act.NOTHING
    heart.heard()
    assert heart.tick(2.0) is Act.PING
    assert heart.misses == 0


def test_silence_makes_suspect_then_closes() -> None:
    heart = opened()
    heart.runs(1)
    acts, states = [], []
    for second in range(1, 20):
        acts.append(heart.tick(float(second)))
        states.append(heart.state)
    first_suspect = states.index(State.SUSPECT)
    assert first_suspect == SUSPECT_MISSES, "the first period has no ping at its beginning"
    assert acts.index(Act.CLOSE) == CLOSE_MISSES
    assert states[CLOSE_MISSES] is State.CLOSING
    assert set(acts[CLOSE_MISSES + 1 :]) == {Act.NOTHING}


@pytest.mark.parametrize(("running", "back"), [(0, State.IDLE), (3, State.OPEN)])
def test_one_sign_of_life_brings_it_back(running: int, back: State) -> None:
    heart = opened()
    heart.runs(running)
    for second in range(1, 5):
        heart.tick(float(second))
    assert heart.state is State.SUSPECT
    heart.runs(running)
    assert heart.state is State.SUSPECT, "what ends here says nothing about the peer"
    heart.heard()
    assert heart.state is back
    assert heart.misses == 0
    assert [heart.tick(second) for second in (5.0, 6.0, 7.0)] == [Act.PING] * 3
    assert heart.state is back


def test_a_node_that_slept_blames_the_peer_for_one_period_only() -> None:
    heart = opened()
    heart.tick(1.0)
    heart.tick(500.0)
    assert heart.misses == 1
    assert heart.due(500.0) == 1.0


def test_another_period_counts_from_now() -> None:
    heart = opened(600.0)
    heart.change(0.08, 10.0)
    assert heart.due(10.0) == pytest.approx(0.08)
    assert heart.tick(10.08) is Act.PING
    early = Heartbeat(600.0)
    early.change(1.0, 0.0)
    assert early.due(0.0) == float("inf"), "still no handshake"


def test_late_words_change_nothing() -> None:
    heart = opened()
    heart.closing()
    heart.heard()
    heart.runs(3)
    heart.opened(1.0)
    assert heart.state is State.CLOSING
    heart.closed()
    heart.closing()
    assert heart.state is State.CLOSED


def test_pongs_measure_the_round_trip() -> None:
    heart = opened()
    first = heart.ping(1.0)
    assert heart.ponged(b"somebody else's", 1.1) is None
    assert heart.ponged(first, 1.2) == pytest.approx((0.2, 0.1))
    assert heart.ponged(first, 1.3) is None, "once"
    second = heart.ping(2.0)
    assert second != first
    trip, jitter = heart.ponged(second, 2.6) or (0.0, 0.0)
    assert trip == pytest.approx(0.25)
    assert jitter == pytest.approx(0.1 + (0.4 - 0.1) / 4)


@given(st.lists(st.sampled_from(["tick", "heard", "run", "rest", "ping", "closing"]), max_size=60))
def test_whatever_happens_it_closes_only_after_enough_silence(events: list[str]) -> None:
    heart, silent = opened(), 0
    for second, event in zip(itertools.count(1), events, strict=False):
        now = float(second)
        if event == "tick":
            alive = heart.alive
            act = heart.tick(now)
            silent += alive
            assert (act is Act.NOTHING) == (not alive)
            assert act is not Act.CLOSE or silent > CLOSE_MISSES
        elif event == "heard":
            heart.heard()
            silent = 0
        elif event == "ping":
            heart.ponged(heart.ping(now), now)
        elif event == "closing":
            heart.closing()
        else:
            heart.runs(int(event == "run"))
        assert heart.state is not State.SUSPECT or heart.misses >= SUSPECT_MISSES
