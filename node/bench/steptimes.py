"""When the echo engine made its tokens: `python -m node.bench.steptimes FILE serve …` is `outpost serve …`, and tells.

Each step that made any is noted as soon as it is over, by the clock that all processes of a machine share: a list grows
by a number, twenty times a second, which changes nothing of what is measured.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from node.bench.through import serve
from node.engine.echo import EchoEngine
from node.generation import Event, Token

Step = Callable[[EchoEngine], list[tuple[str, Event]]]


def noted(step: Step, times: list[float], clock: Callable[[], float] = time.monotonic) -> Step:
    """`step`, which adds to `times` when it made tokens."""

    def watched(engine: EchoEngine) -> list[tuple[str, Event]]:
        events = step(engine)
        if any(isinstance(event, Token) for _, event in events):
            times.append(clock())
        return events

    return watched


def run(words: Sequence[str]) -> None:
    """The node."""
    times: list[float] = []
    EchoEngine.step = noted(EchoEngine.step, times)  # type: ignore[assignment,method-assign]  # in this process only
    serve(words, lambda: times)


if __name__ == "__main__":
    run(sys.argv[1:])
