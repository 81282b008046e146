"""Opening an engine by its name."""

import pytest

from node.engine.base import open_engine
from node.engine.echo import EchoEngine
from node.settings import Engine


def test_echo_needs_no_file() -> None:
    engine = open_engine(Engine(kind="echo", slots=3, context=100), "echo", None)
    assert isinstance(engine, EchoEngine)
    info = engine.model.info
    assert (info.slots, info.parked, info.context) == (3, 3, 100)
    assert engine.load == (0, 0, 0, 100, 1, 0, 0)
    engine.close()


def test_llama_needs_one() -> None:
    with pytest.raises(AssertionError):
        open_engine(Engine(), "x", None)
