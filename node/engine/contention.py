"""How many threads decode: fewer while others want the cores, all of them again when it is quiet.

The threads of a step meet at some hundred barriers. Where another process has taken a core from one of them, all wait
for it, at every barrier; a step can take a hundred times as long. One thread waits for nobody. How much is lost depends
on the library, the scheduler and the neighbours, so nothing is assumed and everything is tried:

1. A step's slowness is its time over the least time ever seen for the same work, whatever the number of threads.
2. When a quarter of a second was `SLOW` times slower than is normal with so many threads, or more, as many times fewer
   are tried: with fewer still it could not be faster.
3. When there are fewer than all, twice as many are tried: at once after a success, else after half a second, and, as
   long as that fails, after twice as long each time, up to `LONGEST_PAUSE_S`: so late at most is quiet noticed.
4. A trial lasts a quarter of a second, or one step where that is `HOPELESS`. The faster number stays; of two that are
   as fast, the larger.
5. The first trial, of one thread, comes unasked: a node may be started on a machine that is busy already.
"""

from __future__ import annotations

from dataclasses import dataclass

WINDOW_S = 0.25  # of steps between two decisions
SLOW = 1.8
GAIN = 0.9  # of the slowness with more threads: fewer must be worth it
HOPELESS = 3.0  # times the other's slowness: a trial ends at once
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 7.0
_STALE_S = 1.0  # without any step: what was measured before says nothing


@dataclass(slots=True)
class _Window:
    """Steps with one number of threads."""

    seconds: float = 0.0
    expected: float = 0.0

    @property
    def slowness(self) -> float:
        return self.seconds / self.expected


@dataclass(frozen=True, slots=True)
class _Trial:
    """Another number of threads competes with `home`, which had this slowness."""

    home: int
    slowness: float


class Contention:
    """Decides on `threads`, which is `most` when nobody else wants the cores. A `suspicious` one makes trial 5."""

    def __init__(self, most: int, *, suspicious: bool = True) -> None:
        self.most = self.threads = most
        self._least: dict[int, float] = {}  # seconds a unit, by work
        self._window = _Window()
        self._trial: _Trial | None = None
        self._normal = 0.0 if suspicious else 1.0  # slowness that is normal with so many threads; 0 is unknown
        self._pause_s = FIRST_PAUSE_S
        self._climb_at = 0.0
        self._seen_at = 0.0

    @property
    def settled(self) -> int:
        """The number of threads that stands while another one is tried."""
        return self._trial.home if self._trial else self.threads

    def observe(self, work: int, seconds: float, now: float, *, weight: int = 1) -> None:
        """`weight` units of `work` took so long each, with `threads`; in quiet, the same work takes the same time."""
        if self.most == 1 or seconds <= 0:
            return
        if now - seconds * weight - self._seen_at > _STALE_S:
            self._go_home()
        self._seen_at = now
        least = self._least.get(work)
        self._least[work] = min(least or seconds, seconds)
        if least is None:
            return
        self._window.seconds += seconds * weight
        self._window.expected += least * weight
        if self._trial:
            self._judge(self._trial, now)
        elif self._window.seconds >= WINDOW_S:
            self._consider(now)

    def _consider(self, now: float) -> None:
        """A window is full: is something to be tried?"""
        slowness, self._window = self._window.slowness, _Window()
        times = slowness / self._normal if self._normal else self.threads
        self._normal = min(self._normal, slowness) or slowness
        if self.threads > 1 and times > SLOW:
            self._try(max(1, int(self.threads / times)), slowness)
        elif self.threads < self.most and now >= self._climb_at:
            self._try(min(self.most, 2 * self.threads), slowness)

    def _try(self, threads: int, slowness: float) -> None:
        self._trial = _Trial(self.threads, slowness)
        self.threads, self._window = threads, _Window()

    def _judge(self, trial: _Trial, now: float) -> None:
        slowness = self._window.slowness
        if slowness <= HOPELESS * trial.slowness and self._window.seconds < WINDOW_S:
            return
        climbing = self.threads > trial.home
        if slowness <= trial.slowness * (1 if climbing else GAIN):
            self._trial, self._window, self._normal = None, _Window(), slowness
            self._climb_at, self._pause_s = now, FIRST_PAUSE_S
            if climbing and self.threads < self.most:
                self._try(min(self.most, 2 * self.threads), slowness)
            return
        if climbing:
            self._climb_at, self._pause_s = now + self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        else:
            self._normal = trial.slowness  # fewer threads are no cure: it is as fast as it can be
        self._go_home()

    def _go_home(self) -> None:
        self.threads, self._trial, self._window = self.settled, None, _Window()
