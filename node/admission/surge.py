"""A fuse for surges: the door closes for the lower levels before a sudden crowd fills every queue; pure.

Traffic is counted in windows. Over three times the usual in two windows running, while all slots are in use, closes the
door for background and standard; two such windows more, for interactive, too. Critical requests always come in. Two
windows without that open it again. The usual is a slow mean of calm windows; in a surge it only creeps up, so that a
crowd which stays becomes the usual within minutes.
"""

from __future__ import annotations

from node.generation import Level

WINDOW_S = 5.0
FACTOR = 3.0
STAGES: tuple[frozenset[Level], ...] = (
    frozenset(),
    frozenset({"background", "standard"}),
    frozenset({"background", "standard", "interactive"}),
)

_TRIPS_AFTER, _OPENS_AFTER = 2, 2  # windows
_LEARNING = 6  # windows before anything is unusual
_LEAST_USUAL = 5.0  # requests a window: among so few, three times more is chance
_SMOOTHING, _CREEP = 0.1, 1.05


class SurgeFuse:
    """Tell it of every request that comes, refused or not, and ask `closed` before letting one in."""

    def __init__(self) -> None:
        self.usual = 0.0  # requests a window
        self.stage = 0
        self._window: int | None = None
        self._count = self._seen = 0
        self._high = self._calm = 0  # windows in a row, since the last step

    def arrived(self, now: float, busy: bool) -> None:
        """A request came; `busy` is whether all slots are in use."""
        self.look(now, busy)
        self._count += 1

    def look(self, now: float, busy: bool) -> None:
        """Close the windows that have ended by now."""
        window = int(now // WINDOW_S)
        if self._window is None:
            self._window = window
        for _ in range(min(window - self._window, 100)):  # after so many empty ones nothing changes any more
            self._end_window(busy)
        self._window = window

    def closed(self, level: Level) -> bool:
        """Whether the door is closed for this level."""
        return level in STAGES[self.stage]

    def retry_after(self, now: float) -> int:
        """Whole seconds until the door may open at the earliest."""
        rest = WINDOW_S - now % WINDOW_S
        return 1 + int(rest + max(0, _OPENS_AFTER - self._calm - 1) * WINDOW_S)

    def _end_window(self, busy: bool) -> None:
        count, self._count = self._count, 0
        usual = max(self.usual, _LEAST_USUAL)
        high = self._seen >= _LEARNING and count > FACTOR * usual
        self._seen += 1
        if high:
            self._high, self._calm = self._high + 1, 0
            self.usual = usual * _CREEP
        else:
            self._high, self._calm = 0, self._calm + 1
            weight = max(_SMOOTHING, 1 / self._seen)
            self.usual += weight * (count - self.usual)
        if self._calm >= _OPENS_AFTER:
            self.stage = 0
        elif self._high >= _TRIPS_AFTER and busy:
            self.stage, self._high = min(self.stage + 1, len(STAGES) - 1), 0
