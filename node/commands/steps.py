"""How far a benchmark is, on stderr."""

from __future__ import annotations

import sys

_LINE_EVERY_S = 10.0


class Steps:
    """A line a step, or one every ten seconds where the steps are seconds."""

    def __init__(self, unit: str, total: int = 0) -> None:
        self.total, self._unit, self._done = total, unit, 0
        self._noted = 0.0

    def next(self, label: str) -> None:
        """The next measurement begins."""
        self._done += 1
        self._noted = 0.0
        self._show(label)

    def note(self, seconds: float, label: str) -> None:
        """So many seconds of this measurement have passed."""
        if seconds >= self._noted + _LINE_EVERY_S:
            self._noted = seconds
            self._show(f"  {seconds:.0f} s: {label}")

    def reach(self, seconds: float, label: str) -> None:
        """So many seconds of all have passed."""
        if seconds >= self._done + _LINE_EVERY_S and seconds < self.total:
            self._done = round(seconds)
            self._show(label)

    def _show(self, label: str) -> None:
        width = len(str(self.total))
        print(f"[{self._done:{width}} of {self.total} {self._unit}]  {label}", file=sys.stderr, flush=True)
