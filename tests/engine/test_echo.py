"""The echo engine is deterministic, to the byte."""

from __future__ import annotations

import pytest

from node.engine.base import open_engine
from node.engine.echo import EchoEngine
from node.errors import Unsupported
from node.generation import Constraint, Finished, Request
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
