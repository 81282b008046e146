"""The echo engine is deterministic, to the byte."""

from __future__ import annotations

import time

import numpy as np
import pytest

from node.engine.base import open_engine
from node.engine.blocks import BlockStore
from node.engine.echo import EchoEngine
from node.errors import EngineFailed, Unsupported
from node.generation import Caller, Constraint, Finished, Request, Started
from node.settings import Engine
from tests.engine.conftest import run


@pytest.fixture
def engine() -> EchoEngine:
    opened = open_engine(Engine(kind="echo"), "echo", None)
    assert isinstance(opened, EchoEngine)
    return opened


def test_it_says_what_it_was_told(engine: EchoEngine) -> None:
    outcome = run(engine, [Request("r", tuple("naïve 👍".encode()), 100)])["r"]
    assert outcome.text.decode() == "naïve 👍"
    assert outcome.end == Finished("stop", 11, 11)


def test_a_rate_is_kept_and_delays_are_made_up_for() -> None:
    paused = EchoEngine(Engine(kind="echo", echo_rate=200.0), "echo")
    began = time.monotonic()
    outcome = run(paused, [Request("r", tuple(b"abcdefgh"), 41, ignore_eos=True)])["r"]
    took = time.monotonic() - began
    assert outcome.text == b"abcdefgh" * 5 + b"a"
    assert took >= 0.19, "40 gaps of 5 ms, but for the first step's head start"
    paused._due = time.monotonic() + 0.001
    paused._pause(paused._due + 0.003)
    assert paused._due < time.monotonic() + 0.006, "what was late is not waited for again"


def test_limits_and_repetition(engine: EchoEngine) -> None:
    prompt = tuple(b"abc")
    assert run(engine, [Request("r", prompt, 2)])["r"].end == Finished("length", 3, 2)
    outcome = run(engine, [Request("r", prompt, 7, ignore_eos=True)])["r"]
    assert outcome.text == b"abcabca"


def test_the_last_user_message_is_echoed(engine: EchoEngine) -> None:
    chat = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": "two"},
    ]
    assert engine.model.decode(engine.model.chat(chat)) == b"two"
    assert engine.model.chat([{"role": "system", "content": "s"}])


def test_long_prompts_take_several_steps(engine: EchoEngine) -> None:
    engine.add(Request("r", tuple(b"x" * (2 * EchoEngine.CHUNK + 1)), 1))
    assert [bool(engine.step()) for _ in range(3)] == [True, False, True]


def test_it_cannot_constrain(engine: EchoEngine) -> None:
    with pytest.raises(Unsupported):
        engine.model.check(Constraint("regex", "a"))


def warm_engine() -> tuple[EchoEngine, BlockStore]:
    store = BlockStore(1 << 20)
    return EchoEngine(Engine(kind="echo"), "echo", store), store


def test_what_was_read_or_answered_is_warm_the_next_time() -> None:
    engine, _ = warm_engine()
    prompt = tuple(b"abc" * 50)
    first = run(engine, [Request("r", prompt, 100)])["r"]
    again = run(engine, [Request("r", prompt, 100)])["r"]
    assert first.events[0] == Started(0)
    assert again.events[0] == Started(149)
    longer = run(engine, [Request("r", prompt + tuple(first.text) + tuple(b"xyz"), 100)])["r"]
    assert longer.events[0] == Started(250)
    assert again.text == first.text


def test_a_prefix_is_read_block_by_block_and_exported_without_what_follows() -> None:
    engine, store = warm_engine()
    assert engine.warm
    ids = np.frombuffer(b"abcdefgh" * 20, np.uint8).astype(np.int32)
    assert [engine.warm.read("t", ids) for _ in range(4)] == [64, 128, 160, 160]
    assert engine.warm.export("t", ids[:100]) == (ids[:64].tobytes(), ids[64:100].tobytes())
    assert engine.warm.export("u", ids) is None
    assert store.length("t", ids) == 160


def test_a_foreign_state_is_an_error() -> None:
    engine, store = warm_engine()
    ids = np.frombuffer(b"a" * 64, np.uint8).astype(np.int32)
    store.put("t", ids, b"something else")
    with pytest.raises(EngineFailed, match="other tokens"):
        engine.add(Request("r", tuple(b"a" * 70), 5, caller=Caller(tenant="t")))
