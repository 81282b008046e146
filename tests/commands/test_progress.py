from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.commands.progress import Progress, amount, duration, format_line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Time that stands still until it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("number", "unit", "shown"),
    [
        (0, "B", "0 B"),
        (999, "B", "999 B"),
        (999.6, "B", "1.0 kB"),
        (98_362_432, "B", "98.4 MB"),
        (999_960_000, "B", "1.0 GB"),
        (5e15, "B", "5,000.0 TB"),
        (1234, "tokens", "1,234 tokens"),
        (3.25, "requests", "3.2 requests"),
    ],
)
def test_amounts(number: float, unit: str, shown: str) -> None:
    assert amount(number, unit) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-1, "0 s"),
        (0.44, "0.4 s"),
        (7, "7 s"),
        (9.97, "10 s"),
        (59.6, "1 min 0 s"),
        (75, "1 min 15 s"),
        (7260, "2 h 1 min"),
        (1e8, "27,777 h 46 min"),
    ],
)
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (0, "fetching m   45 %  45.0 of 100.0 MB  5.0 MB/s  11 s left"),
        (70, "fetching m  █████░░░░░░░   45 %  45.0 of 100.0 MB  5.0 MB/s  11 s left"),
        (60, "fetching m  █████████░░░░░░░░░░░   45 %  5.0 MB/s  11 s left"),
        (40, "fetching m   45 %  45.0 of 100.0 MB  5.…"),
        (1, "…"),
    ],
)
def test_a_line_fits_its_width(width: int, shown: str) -> None:
    assert format_line("fetching m", 45_000_000, 100_000_000, 5e6, width) == shown


@pytest.mark.parametrize(
    ("done", "total", "rate", "shown"),
    [
        (0, 0, 0.0, "waiting"),
        (5_000_000, 0, 1e6, "waiting  5.0 MB  1.0 MB/s"),
        (0, 100, 0.0, "waiting    0 %  0 of 100 B"),
        (999, 1_000_000, 0.0, "waiting    0 %  999 B of 1.0 MB"),
        (100, 100, 5.0, "waiting  100 %  100 of 100 B  5 B/s"),
        (0, 10**12, 0.001, "waiting    0 %  0 B of 1.0 TB  0 B/s"),
        (150, 100, 5.0, "waiting  100 %  150 of 100 B  5 B/s"),
    ],
)
def test_what_is_unknown_is_left_out(done: int, total: int, rate: float, shown: str) -> None:
    assert format_line("waiting", done, total, rate, 0) == shown


@given(st.text(max_size=40), st.integers(0, 1 << 50), st.integers(0, 1 << 50), st.floats(0, 1e12), st.integers(1, 200))
def test_no_state_is_wider_than_the_terminal(label: str, done: int, total: int, rate: float, width: int) -> None:
    assert len(format_line(label, done, total, rate, width)) <= width


def test_on_a_terminal_it_is_drawn_in_place_and_not_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream, clock = Terminal(), Clock()
    with Progress("fetching m", 1000, stream=stream, clock=clock) as progress:
        for done in range(0, 1001, 10):  # 10 bytes every 31 ms
            progress.update(done)
            clock.now += 1 / 32
    drawn = stream.getvalue().split("\r\x1b[K")
    assert len(drawn) == 1 + 26 + 1
    assert "█" in drawn[15]
    assert "320 B/s" in drawn[15]
    assert drawn[-1] == "fetching m: 1.0 kB in 3.2 s, 317 B/s\n"
    assert all(len(line) < 80 for line in drawn)


def test_elsewhere_it_is_a_line_every_few_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress("fetching m", 1000, stream=stream, clock=clock) as progress:
        for done in range(0, 1001, 50):
            progress.update(done)
            clock.now += 1.0
    lines = stream.getvalue().splitlines()
    assert lines == [
        "fetching m   25 %  250 B of 1.0 kB  50 B/s  15 s left",
        "fetching m   50 %  500 B of 1.0 kB  50 B/s  10 s left",
        "fetching m   75 %  750 B of 1.0 kB  50 B/s  5 s left",
        "fetching m  100 %  1.0 of 1.0 kB  50 B/s",
        "fetching m: 1.0 kB in 21 s, 48 B/s",
    ]


def test_what_was_there_before_does_not_count_as_speed() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress("fetching m", 1000, stream=stream, clock=clock) as progress:
        progress.update(900)
        clock.now += 10
        progress.update(1000)
    assert stream.getvalue().splitlines()[-1] == "fetching m: 1.0 kB in 10 s, 10 B/s"


def test_a_rate_is_that_of_the_last_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress("run", 0, "tokens", stream=stream, clock=clock) as progress:
        done = 0
        for second in range(40):
            done += 1000 if second < 20 else 10
            progress.update(done)
            clock.now += 1.0
    assert "  10 tokens/s" in stream.getvalue().splitlines()[-2]


def test_an_error_leaves_the_bar_as_it_stood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    progress = Progress("fetching m", 1000, stream=stream)
    progress.update(10)
    progress.__exit__(KeyError, KeyError(), None)
    assert stream.getvalue().endswith("B of 1.0 kB\n")
    assert " in " not in stream.getvalue()


def test_a_wait_without_amounts_ends_with_its_time() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress("waiting", 0, stream=stream, clock=clock) as progress:
        progress.update(0)
        clock.now += 3.8
    assert stream.getvalue() == "waiting: 3.8 s\n"


def test_what_never_began_says_nothing() -> None:
    stream = Terminal()
    with Progress("fetching m", 1000, stream=stream):
        pass
    assert stream.getvalue() == ""
