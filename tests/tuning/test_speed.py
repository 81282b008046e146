"""What is measured, on engines whose pace is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from node.engine.base import EngineLoad, open_engine
from node.errors import EngineFailed
from node.generation import Event, Failed, Finished, Model, Request, Token
from node.settings import Engine as EngineSettings
from node.tuning.speed import Course, Sizes, first_sizes, rate_together, sizes
from node.tuning.variants import Speed


@dataclass
class Paced:
    """An engine with a clock: reading takes `read_s` a token, a step `step_s`, whatever runs."""

    read_s: float = 0.01
    step_s: float = 0.1
    fail: bool = False
    now: float = 0.0
    requests: dict[str, Request] = field(default_factory=dict)
    made: dict[str, int] = field(default_factory=dict)
    prompts: list[tuple[int, ...]] = field(default_factory=list)
    most: int = 0
    model: Model = None  # type: ignore[assignment]
    warm: None = None

    @property
    def load(self) -> EngineLoad:
        return EngineLoad(len(self.requests), len(self.requests), 0, 0)

    def add(self, request: Request) -> None:
        assert request.ignore_eos
        assert request.sampling.temperature == 0
        self.requests[request.id] = request
        self.prompts.append(request.prompt)
        self.most = max(self.most, len(self.requests))

    def cancel(self, request_id: str) -> None:
        raise AssertionError("nothing is cancelled")

    def hold(self, request_id: str, held: bool) -> None:
        raise AssertionError("nothing is held")

    def step(self) -> list[tuple[str, Event]]:
        events: list[tuple[str, Event]] = []
        for name, request in list(self.requests.items()):
            if self.fail:
                events.append((name, Failed(EngineFailed("no"))))
                continue
            if name not in self.made:
                self.now += self.read_s * len(request.prompt)
            self.made[name] = self.made.get(name, 0) + 1
            events.append((name, Token(1, b"x")))
            if self.made[name] == request.max_tokens:
                del self.requests[name]
                events.append((name, Finished("length", len(request.prompt), request.max_tokens)))
        self.now += self.step_s
        return events

    def fail_all(self) -> list[str]:
        return []

    def close(self) -> None:
        pass


def course(engine: Paced, text: Sequence[int] = tuple(range(1000))) -> Course:
    return Course(text, lambda: engine.now)


def test_rates_are_what_the_clock_says() -> None:
    engine = Paced(read_s=0.01, step_s=0.1)
    speed = course(engine).run(engine, Sizes(prompt=100, answer=20, each=10, streams=8))
    assert speed.prefill == pytest.approx(100 / (100 * 0.01 + 0.1))
    assert speed.decode == pytest.approx(1 / 0.1)
    assert speed.streams == pytest.approx(8 / 0.1)
    assert engine.most == 8


def test_no_two_prompts_begin_alike_so_that_nothing_is_warm() -> None:
    engine = Paced()
    taken = course(engine, tuple(range(2000)))
    for _ in range(5):
        taken.run(engine, Sizes(prompt=64, answer=2, each=2, streams=4))
    assert len(engine.prompts) == 30
    assert len({prompt[0] for prompt in engine.prompts}) == 30
    assert {len(prompt) for prompt in engine.prompts} == {64, 16}


def test_a_short_text_goes_round() -> None:
    engine = Paced()
    course(engine, (5, 6, 7)).run(engine, Sizes(prompt=10, answer=2, each=2, streams=1))
    assert engine.prompts[0] == (5, 6, 7, 5, 6, 7, 5, 6, 7, 5)
    with pytest.raises(ValueError, match="needs a text"):
        course(engine, ())


def test_a_request_that_fails_is_an_error() -> None:
    engine = Paced(fail=True)
    with pytest.raises(EngineFailed, match="A measurement failed: no"):
        course(engine).run(engine, first_sizes(8))


def test_the_real_protocol_on_the_echo_engine() -> None:
    engine = open_engine(EngineSettings(kind="echo"), "echo", None)
    speed = Course([*b"some words to say again"]).run(engine, first_sizes(8))
    assert min(speed.decode, speed.prefill, speed.streams) > 0
    assert engine.load.requests == 0
    engine.close()


@pytest.mark.parametrize(
    ("times", "rate"),
    [
        ([[0, 1, 2, 3]], 1),
        ([[0, 1, 2, 3], [0, 1, 2, 3]], 2),
        ([[0, 1, 2, 3], [2, 3, 4, 5]], 2),  # both run only from 2 to 3
        ([[0, 1, 2, 3, 4], [0.5, 1, 1.5, 2]], (2 + 3) / 1.5),
    ],
)
def test_streams_count_only_while_all_of_them_run(times: list[list[float]], rate: float) -> None:
    assert rate_together(times) == pytest.approx(rate)


def test_sizes_take_about_as_long_as_was_asked() -> None:
    first = first_sizes(8)
    assert sizes(Speed(100, 300, 200), 1.0, first, 8192) == Sizes(prompt=256, answer=100, each=25, streams=8)
    assert sizes(Speed(100, 300, 200), 0.4, first, 8192) == Sizes(prompt=64, answer=40, each=10, streams=8)


def test_a_slow_engine_does_no_more_than_at_first_and_a_fast_one_not_without_end() -> None:
    first = first_sizes(8)
    assert sizes(Speed(0.5, 2, 1), 1.0, first, 8192) == first
    fast = sizes(Speed(9e4, 9e5, 9e5), 1.0, first, 8192)
    assert fast == Sizes(prompt=512, answer=256, each=256, streams=8)
    assert sizes(Speed(9e4, 9e5, 9e5), 1.0, first, 256) == Sizes(prompt=128, answer=128, each=16, streams=8)


def test_a_node_with_few_slots_is_measured_with_as_many_streams() -> None:
    assert first_sizes(2).streams == 2
    assert first_sizes(64).streams == 8
