"""Long prompts among streams are read aside: streams go on, text is the same, nothing is left behind.

What counts as long is made shorter here, and the cache smaller: what is decided is the same, in a tenth of the time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.engine import aside
from node.engine.context import Context, NoMemory
from node.engine.llama import LlamaEngine
from node.generation import Finished, Request, Sampling, Started
from node.settings import Engine as EngineSettings
from tests.engine.conftest import Outcome, run, take

pytestmark = pytest.mark.model
GREEDY = Sampling(temperature=0)
CONTEXT = 384
LEAST, CHUNK = 64, 32


@pytest.fixture(scope="module")
def engine(weights: Path, every_core: None) -> Iterator[LlamaEngine]:
    opened = LlamaEngine(EngineSettings(slots=4, context=CONTEXT, threads=2, drafts="off"), "llama", weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aside, "LEAST", LEAST)
        patch.setattr(aside, "CHUNK", CHUNK)
        yield opened
    opened.close()
    assert not any(thread.name == "aside" for thread in threading.enumerate())


def stream(engine: LlamaEngine, id: str = "stream", max_tokens: int = CONTEXT) -> Request:
    prompt = tuple(engine.model.chat([{"role": "user", "content": "Tell a long story."}]))
    return Request(id, prompt, min(max_tokens, CONTEXT - len(prompt)), sampling=GREEDY, ignore_eos=True)


def long(engine: LlamaEngine, id: str = "long", words: int = 120) -> Request:
    ids = engine.model.encode("The river runs through the valley to the sea. " * 200)[:words]
    return Request(id, tuple(ids), 4, sampling=GREEDY, ignore_eos=True)


def begin(engine: LlamaEngine) -> dict[str, Outcome]:
    """One stream that has begun."""
    outcomes = {"stream": Outcome(), "long": Outcome(), "other": Outcome()}
    engine.add(stream(engine))
    while len(outcomes["stream"].tokens) < 2:
        take(engine, outcomes)
    return outcomes


def test_the_stream_gets_a_token_every_step_and_the_prompt_its_answer(engine: LlamaEngine) -> None:
    alone = run(engine, [long(engine)])["long"].text
    outcomes = begin(engine)
    engine.add(long(engine))
    steps = 0
    while not outcomes["long"].tokens:
        before = len(outcomes["stream"].tokens)
        take(engine, outcomes)
        assert len(outcomes["stream"].tokens) == before + 1
        steps += 1
        reading = engine._side._reading
        if engine._side.cores.shared:
            assert reading
        else:
            assert reading is None or reading[0].ended
    assert steps > 2
    assert outcomes["long"].events[0] == Started()
    while outcomes["long"].end is None:
        take(engine, outcomes)
    assert outcomes["long"].text == alone


def test_short_prompts_and_prompts_alone_are_not_read_aside(engine: LlamaEngine) -> None:
    run(engine, [long(engine)], lambda *_: _assert(engine._side._reading is None))
    outcomes = begin(engine)
    engine.add(long(engine, words=LEAST - 10))
    while not outcomes["long"].tokens:
        take(engine, outcomes)
        assert engine._side._reading is None


def test_cancel_while_it_is_read_aside_frees_it_at_once(engine: LlamaEngine) -> None:
    outcomes = begin(engine)
    request = long(engine)
    engine.add(request)
    take(engine, outcomes)
    assert engine._side._reading
    engine.cancel("long")
    take(engine, outcomes)
    assert outcomes["long"].end == Finished("cancelled", len(request.prompt), 0)
    assert engine._side._reading is None
    outcomes["long"] = Outcome()
    engine.add(long(engine))
    while not outcomes["long"].tokens:
        take(engine, outcomes)


def test_a_second_long_prompt_waits_its_turn(engine: LlamaEngine) -> None:
    outcomes = begin(engine)
    engine.add(long(engine))
    engine.add(long(engine, id="other", words=90))
    while not outcomes["other"].tokens:
        take(engine, outcomes)
    assert outcomes["long"].tokens or outcomes["long"].end


def test_when_the_stream_ends_the_prompt_gets_all_cores(engine: LlamaEngine) -> None:
    outcomes = begin(engine)
    engine.add(long(engine, words=300))
    take(engine, outcomes)
    engine.cancel("stream")
    while outcomes["long"].end is None:
        take(engine, outcomes)
        if engine._side._reading:
            assert engine._side._reading[0].threads == engine._side.cores.threads
    assert len(outcomes["long"].tokens) == 4


def test_a_held_prompt_is_read_no_further_and_gives_way_to_another(engine: LlamaEngine) -> None:
    outcomes = begin(engine)
    engine.add(long(engine, words=160))
    take(engine, outcomes)
    assert engine._side._reading
    reader, _ = engine._side._reading
    engine.hold("long", True)
    assert reader.paused
    for _ in range(3):
        take(engine, outcomes)
        assert not engine._side.cores.shared, "the streams have all cores again"
    engine.hold("long", False)
    assert not reader.paused
    engine.hold("long", True)
    engine.add(long(engine, id="other", words=90))
    while not outcomes["other"].tokens:
        take(engine, outcomes)
    assert not outcomes["long"].events[1:]
    engine.hold("long", False)
    while outcomes["long"].end is None:
        take(engine, outcomes)
    assert len(outcomes["long"].tokens) == 4


def test_what_was_read_waits_for_cells_and_nobody_takes_them(
    engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, slow = 240, threading.Event()
    alone = run(engine, [long(engine, words=words)])["long"].text
    engine.warm = None
    outcomes = begin(engine) | {"late": Outcome()}
    open_context = engine._decoder.open_context

    def in_a_while(*sizes: int) -> Context:
        assert slow.wait(60)
        return open_context(*sizes)

    monkeypatch.setattr(engine._decoder, "open_context", in_a_while)
    engine.add(long(engine, words=words))
    while engine.load.kv_used < engine.load.kv_total - words + 8:  # it has grown into cells that the other would need
        take(engine, outcomes)
    assert engine._side._reading
    slow.set()
    engine._side._reading[0].wait(120)  # no step: on a busy machine the stream would come to its end meanwhile
    engine._sequences["long"].due = True
    engine.add(stream(engine, "late", 4))
    for _ in range(5):
        take(engine, outcomes)
    assert not outcomes["long"].tokens
    assert not outcomes["late"].tokens, "it would fit, but in cells that are kept"
    engine.cancel("stream")
    while outcomes["late"].end is None or outcomes["long"].end is None:
        take(engine, outcomes)
    assert outcomes["long"].text == alone


def test_without_memory_for_it_the_prompt_is_read_among_the_streams(
    engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise NoMemory

    outcomes = begin(engine)
    with monkeypatch.context() as patch:
        patch.setattr(engine._decoder, "open_context", none)
        engine.add(long(engine, words=120))
        while not outcomes["long"].tokens:
            take(engine, outcomes)
    assert len(outcomes["stream"].tokens) > 4


def test_losing_everything_stops_the_reading(engine: LlamaEngine) -> None:
    outcomes = begin(engine)
    engine.add(long(engine, words=300))
    take(engine, outcomes)
    assert engine._side._reading
    engine.fail_all()
    assert engine._side._reading is None
    assert run(engine, [long(engine, words=40)])["long"].tokens


def _assert(held: bool) -> None:
    assert held
