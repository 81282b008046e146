"""When the engine made its tokens: only steps that made some, and the steps are what they were."""

from __future__ import annotations

import pytest

from node.bench import steptimes as module
from node.bench.steptimes import noted
from node.engine.echo import EchoEngine
from node.generation import Event, Started, Token


class Engine:
    """Gives these events, a step after the other."""

    def __init__(self, *steps: list[tuple[str, Event]]) -> None:
        self._steps = list(steps)

    def step(self) -> list[tuple[str, Event]]:
        return self._steps.pop(0)


def test_only_steps_that_made_tokens_are_noted() -> None:
    token, begun = ("a", Token(1, b"x")), ("a", Started())
    steps: list[list[tuple[str, Event]]] = [[begun], [begun, token], [], [token, begun], [token, token]]
    times: list[float] = []
    clock = iter([1.0, 2.0, 3.0])
    step = noted(Engine.step, times, lambda: next(clock))  # type: ignore[arg-type]
    engine = Engine(*steps)
    assert [step(engine) for _ in range(5)] == steps  # type: ignore[arg-type]
    assert times == [1.0, 2.0, 3.0]


def test_the_node_is_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EchoEngine, "step", EchoEngine.step)
    before, served = EchoEngine.step, []
    monkeypatch.setattr(module, "serve", lambda words, tell: served.append((words, tell())))
    module.run(["file", "serve"])
    assert served == [(["file", "serve"], [])]
    assert EchoEngine.step is not before
