"""Every engine, opened; the conformance suite runs over each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from node.engine.base import Engine, open_engine
from node.engine.llama import LlamaEngine
from node.generation import Embedded, End, Event, Failed, Finished, Request, Token
from node.settings import Engine as EngineSettings

# llama.cpp's threads wait for each other by spinning: on a busy machine one is faster than two.
THREADS = 1
ENGINES = ["echo", pytest.param("llama", marks=pytest.mark.model), pytest.param("onnx", marks=pytest.mark.onnx)]


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    kind = request.param
    fixture = {"llama": "weights", "onnx": "onnx_folder"}.get(kind)
    weights: Path | None = request.getfixturevalue(fixture) if fixture else None
    settings = EngineSettings(kind=kind, slots=4, context=1024, threads=THREADS, drafts="off")  # steps are counted
    opened = open_engine(settings, kind, weights)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def llama_engine(weights: Path) -> Iterator[LlamaEngine]:
    """The real engine with the default model and a cache that only two long requests fill."""
    settings = EngineSettings(slots=4, context=512, kv_tokens=512, threads=THREADS, drafts="off")
    opened = LlamaEngine(settings, "llama", weights)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def small_engine(weights: Path) -> Iterator[LlamaEngine]:
    """The same with half of the cells, for tests that fill them: a token takes the real model its time."""
    opened = LlamaEngine(
        EngineSettings(slots=4, context=256, kv_tokens=256, threads=THREADS, drafts="off"), "llama", weights
    )
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _clean_up(request: pytest.FixtureRequest) -> Iterator[None]:
    """A failed test must not leave requests behind for the next."""
    names = [name for name in ("engine", "llama_engine", "small_engine") if name in request.fixturenames]
    engines = [request.getfixturevalue(name) for name in names]
    yield
    for opened in engines:
        opened.fail_all()


class Outcome:
    """What a request came to."""

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self.end: End | None = None
        self.events: list[Event] = []

    @property
    def text(self) -> bytes:
        return b"".join(token.piece for token in self.tokens)


def run(
    engine: Engine, requests: Sequence[Request], after_step: Callable[[int, dict[str, Outcome]], None] | None = None
) -> dict[str, Outcome]:
    """Run requests to their ends; `after_step` may look and cancel between steps."""
    outcomes = {request.id: Outcome() for request in requests}
    for request in requests:
        engine.add(request)
    for step in range(100_000):
        if not engine.load.requests:
            break
        take(engine, outcomes)
        if after_step:
            after_step(step, outcomes)
    take(engine, outcomes)
    return outcomes


def take(engine: Engine, outcomes: dict[str, Outcome]) -> None:
    for request_id, event in engine.step():
        outcome = outcomes.setdefault(request_id, Outcome())
        outcome.events.append(event)
        if isinstance(event, Token):
            outcome.tokens.append(event)
        elif isinstance(event, Finished | Embedded | Failed):
            assert outcome.end is None, "two ends"
            outcome.end = event


TIE = 0.2  # what floats that were rounded otherwise may change in a log-probability; another text changes far more


def assert_same_but_for_ties(expected: Outcome, seen: Outcome, tie: float) -> None:
    """The same tokens, up to a place where another one is nearly as likely: within `tie` in log-probability."""
    assert len(expected.tokens) == len(seen.tokens)
    for one, other in zip(expected.tokens, seen.tokens, strict=True):
        if one.id == other.id:
            continue
        assert one.logprob
        assert one.logprob.value - dict(one.logprob.top).get(other.id, -math.inf) < tie, "they part, and not at a tie"
        return


def assert_alike(alone: Outcome, beside: Outcome) -> None:
    """The first token's distribution is the same, but for what the shape of a batch does to the last bits of floats.

    Texts may part at a near tie; another sequence's influence would change the distribution altogether.
    """
    first, other = alone.tokens[0].logprob, beside.tokens[0].logprob
    assert first
    assert other
    seen = dict(other.top)
    assert first.top[0][0] in seen
    assert abs(seen[first.top[0][0]] - first.top[0][1]) < 0.5
