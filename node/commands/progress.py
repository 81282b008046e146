"""A progress bar with rate and time left, on stderr: in place on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

_REDRAW_S = 0.1
_LINE_EVERY_S = 5.0
_RATE_WINDOW_S = 8.0
_LONGEST_WAIT_S = 30 * 86_400.0
_SHORTEST_BAR, _LONGEST_BAR = 6, 40


class Progress:
    """A context manager; `update(done)` may be called as often as one likes. A `total` of 0 means that nobody knows."""

    def __init__(
        self,
        label: str,
        total: int,
        unit: str = "B",
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.label, self.total, self.unit = label, total, unit
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._in_place = self._stream.isatty()
        self._seen: deque[tuple[float, int]] = deque()  # (when, done) over the last seconds: gives the rate of now
        self._first: tuple[float, int] | None = None  # a resumed download does not begin at 0
        self._done = 0
        self._drawn_at: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._first is None:
            return
        if kind is None:
            self._write(self._summary(), last=True)
        elif self._in_place and self._drawn_at is not None:
            self._stream.write("\n")  # leave the bar as it stood; the error comes below it
            self._stream.flush()

    def update(self, done: int, total: int | None = None) -> None:
        """So much is done; `total` may still change."""
        now = self._clock()
        self.total = self.total if total is None else total
        self._done = done
        self._first = self._first or (now, done)
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > _RATE_WINDOW_S:
            self._seen.popleft()
        if self._is_due(now):
            self._drawn_at = now
            self._write(format_line(self.label, done, self.total, self._rate(), self._width(), self.unit))

    def _is_due(self, now: float) -> bool:
        if self._drawn_at is None:
            # What is done at once needs no line in a log; a terminal shows at once that something happens.
            return self._in_place or now - self._first_time() >= _LINE_EVERY_S
        return now - self._drawn_at >= (_REDRAW_S if self._in_place else _LINE_EVERY_S)

    def _first_time(self) -> float:
        return self._first[0] if self._first else self._clock()

    def _rate(self) -> float:
        (since, before), (now, done) = self._seen[0], self._seen[-1]
        return (done - before) / (now - since) if now > since else 0.0

    def _summary(self) -> str:
        took = self._clock() - self._first_time()
        if not self._done:
            return f"{self.label}: {duration(took)}"
        moved = self._done - (self._first[1] if self._first else 0)
        rate = f", {amount(moved / took, self.unit)}/s" if took > 0.05 else ""
        return f"{self.label}: {amount(self._done, self.unit)} in {duration(took)}{rate}"

    def _write(self, line: str, last: bool = False) -> None:
        if self._in_place:
            self._stream.write(f"\r\x1b[K{line}" + ("\n" if last else ""))
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()

    def _width(self) -> int:
        # One column stays free: some terminals wrap when the last one is written.
        return shutil.get_terminal_size((80, 24)).columns - 1 if self._in_place else 0


def format_line(label: str, done: int, total: int, rate: float, width: int, unit: str = "B") -> str:
    """One state as text with a bar, in at most `width` columns; a width of 0 means no bar and no limit."""
    per_second = f"{amount(rate, unit)}/s" if rate > 0 else ""
    if total <= 0:
        return _cut(_joined(label, amount(done, unit) if done else "", per_second), width)
    left = _left(total - done, rate)
    share = min(max(done / total, 0.0), 1.0)
    percent = f"{int(share * 100):3d} %"
    facts = _joined(percent, _of(done, total, unit), per_second, left)
    for shown in (facts, _joined(percent, per_second, left)):  # where it gets narrow, the counts go before the bar
        room = min(width - len(label) - len(shown) - 4, _LONGEST_BAR)
        if room >= _SHORTEST_BAR:
            full = int(share * room)
            return f"{label}  {'█' * full}{'░' * (room - full)}  {shown}"
    return _cut(_joined(label, facts), width)


def amount(number: float, unit: str = "B") -> str:
    """98362432 -> "98.4 MB"; with another unit 1234 -> "1,234 tokens"."""
    if unit != "B":
        return f"{number:,.0f} {unit}" if number >= 10 or number == int(number) else f"{number:,.1f} {unit}"
    for name in ("B", "kB", "MB", "GB"):
        if number < (999.5 if name == "B" else 999.95):  # what would be shown as 1000 takes the next name
            return f"{number:,.0f} B" if name == "B" else f"{number:,.1f} {name}"
        number /= 1000
    return f"{number:,.1f} TB"


def duration(seconds: float) -> str:
    """0.4 -> "0.4 s", 75 -> "1 min 15 s", 7260 -> "2 h 1 min"."""
    seconds = max(seconds, 0.0)
    if seconds < 9.95 and seconds != int(seconds):
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def _left(remaining: int, rate: float) -> str:
    """The time left, unless that is nothing or years."""
    if remaining <= 0 or rate * _LONGEST_WAIT_S < remaining:
        return ""
    return f"{duration(math.ceil(remaining / rate))} left"


def _of(done: int, total: int, unit: str) -> str:
    """Both amounts, with the unit once where it is the same."""
    so_far, whole = amount(done, unit), amount(total, unit)
    number, _, measure = so_far.partition(" ")
    return f"{number} of {whole}" if whole.endswith(f" {measure}") else f"{so_far} of {whole}"


def _joined(*words: str) -> str:
    return "  ".join(filter(None, words))


def _cut(line: str, width: int) -> str:
    return line if width <= 0 or len(line) <= width else line[: max(width - 1, 0)] + "…"
