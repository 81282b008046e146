"""The surge fuse: when it trips, whom it shuts out, and that it always opens again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node.admission.surge import STAGES, WINDOW_S, SurgeFuse
from node.generation import LEVELS, Level


def play(fuse: SurgeFuse, windows: list[int], start: int = 0, busy: bool = True) -> list[int]:
    """The stage after each window of so many requests."""
    stages = []
    for number, count in enumerate(windows, start):
        for request in range(count):
            fuse.arrived((number + request / count) * WINDOW_S, busy)
        fuse.look((number + 1) * WINDOW_S, busy)
        stages.append(fuse.stage)
    return stages


def shut_out(fuse: SurgeFuse) -> set[Level]:
    return {level for level in LEVELS if fuse.closed(level)}


def test_even_traffic_never_trips_it() -> None:
    fuse = SurgeFuse()
    assert set(play(fuse, [20, 25, 15, 30, 22] * 20)) == {0}
    assert 18 < fuse.usual < 27


def test_two_windows_of_three_times_the_usual_close_the_door_step_by_step() -> None:
    fuse = SurgeFuse()
    play(fuse, [20] * 20)
    assert play(fuse, [70], 20) == [0]
    assert play(fuse, [70], 21) == [1]
    assert shut_out(fuse) == {"background", "standard"}
    assert play(fuse, [80, 80], 22) == [1, 2]
    assert shut_out(fuse) == {"background", "standard", "interactive"}
    assert play(fuse, [90] * 2, 24) == [2, 2]
    assert "critical" not in shut_out(fuse)
    assert play(fuse, [20, 20], 26) == [2, 0]
    assert shut_out(fuse) == set()


def test_one_high_window_is_none() -> None:
    fuse = SurgeFuse()
    play(fuse, [20] * 20)
    assert set(play(fuse, [90, 20] * 10, 20)) == {0}


def test_a_surge_that_the_slots_can_take_is_let_in() -> None:
    fuse = SurgeFuse()
    play(fuse, [20] * 20, busy=False)
    assert set(play(fuse, [90] * 4, 20, busy=False)) == {0}
    assert play(fuse, [90], 24, busy=True) == [1], "it has lasted long enough; only the slots were missing"


def test_few_requests_are_no_surge() -> None:
    fuse = SurgeFuse()
    play(fuse, [0, 1, 0, 0, 1, 0, 0, 0, 1, 0] * 3)
    assert set(play(fuse, [14] * 5, 30)) == {0}


def test_nothing_is_unusual_at_first() -> None:
    fuse = SurgeFuse()
    assert set(play(fuse, [1, 200, 300, 400, 500])) == {0}


def test_a_crowd_that_stays_becomes_the_usual() -> None:
    fuse = SurgeFuse()
    play(fuse, [20] * 20)
    stages = play(fuse, [100] * 60, 20)
    assert max(stages) == 2
    assert stages[-1] == 0
    assert stages.index(2) < 5


def test_silence_opens_the_door_and_is_forgotten_quickly() -> None:
    fuse = SurgeFuse()
    play(fuse, [20] * 20)
    play(fuse, [90] * 4, 20)
    assert fuse.stage == 2
    fuse.look(1e9, busy=False)
    assert fuse.stage == 0
    assert fuse.usual < 0.1


def test_the_refused_are_told_when_the_door_may_open() -> None:
    fuse = SurgeFuse()
    play(fuse, [20] * 20)
    play(fuse, [90] * 4, 20)
    now = 24 * WINDOW_S + 1.0
    told = fuse.retry_after(now)
    assert told == 10
    assert fuse.stage == 2
    fuse.look(now + told, busy=True)
    assert fuse.stage == 0


@given(st.lists(st.tuples(st.integers(0, 200), st.booleans()), max_size=60))
def test_it_moves_one_stage_at_a_time_and_opens_when_it_is_quiet(windows: list[tuple[int, bool]]) -> None:
    fuse, before = SurgeFuse(), 0
    for number, (count, busy) in enumerate(windows):
        (after,) = play(fuse, [count], number, busy)
        assert after in (before, before + 1, 0)
        assert after <= before or busy
        before = after
    assert play(fuse, [0, 0], len(windows))[-1] == 0
    assert shut_out(fuse) == STAGES[0]
