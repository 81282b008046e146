"""When an idle node tunes itself: after so long without a request, and each time a request cuts in, twice as long.

Nothing here does it; `auto` asks `due` and tells what happened. Times are seconds of one clock.
"""

from __future__ import annotations


class Patience:
    """Begins to count when it is made."""

    def __init__(self, idle_s: float, now: float) -> None:
        self._wait = idle_s
        self._since = now

    @property
    def wait_s(self) -> float:
        """How long the node has to be idle."""
        return self._wait

    def busy(self, now: float) -> None:
        """Somebody wants something: the count begins anew."""
        self._since = now

    def interrupted(self, now: float) -> None:
        """A run was given up for a request: a node that is often busy must not burn its pauses."""
        self._since = now
        self._wait *= 2

    def due(self, now: float) -> bool:
        """Whether to begin."""
        return now - self._since >= self._wait
