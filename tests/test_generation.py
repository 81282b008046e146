"""The values are values, and the protocols are kept by what claims to keep them."""

import dataclasses
import gc

import pytest

from node.engine.echo import EchoEngine
from node.generation import Entry, Failed, Finished, Model, Request, Sampling, Token
from node.settings import Engine


def test_values_cannot_change() -> None:
    for value in (Sampling(), Request("r", (1,), 1), Finished("stop", 1, 1)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, None)
    for value in (Token(1, b"x"), Entry("x", None)):
        with pytest.raises(AttributeError):
            setattr(value, value.__struct_fields__[0], None)
        assert not gc.is_tracked(value), "there are hundreds in every answer"


def test_a_request_is_hashable_and_equal_by_value() -> None:
    assert Request("r", (1, 2), 5) == Request("r", (1, 2), 5)
    assert len({Request("r", (1, 2), 5), Request("r", (1, 2), 5)}) == 1


def test_the_echo_model_is_a_model() -> None:
    model: Model = EchoEngine(Engine(kind="echo"), "echo").model
    assert model.info.engine == "echo"
    assert model.decode(model.encode("hi")) == b"hi"
    assert Failed.__doc__
