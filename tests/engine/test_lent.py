"""A model that is taken away while others use it."""

from __future__ import annotations

import threading

import pytest

from node.engine.lent import Lent
from node.errors import Unavailable
from node.generation import Constraint, Model
from tests.support.service import ByteModel


def test_it_is_the_model_until_it_is_taken_back() -> None:
    plain = ByteModel()
    model: Model = Lent(plain)
    assert model.info is plain.info
    assert model.encode("ab") == plain.encode("ab")
    assert model.decode([97]) == b"a"
    message = {"role": "user", "content": "x"}
    assert model.chat([message]) == plain.chat([message])
    model.check(Constraint("regex", "a+"))


def test_afterwards_everything_says_what_to_do() -> None:
    model = Lent(ByteModel())
    model.take_back()
    assert model.info.id == "scripted", "what it was may still be told"
    for use in (
        lambda: model.encode("a"),
        lambda: model.decode([1]),
        lambda: model.chat([]),
        lambda: model.check(Constraint("regex", "a")),
    ):
        with pytest.raises(Unavailable, match="ask again") as told:
            use()
        assert told.value.retry_after == 1


def test_taking_back_waits_for_who_is_inside() -> None:
    inside, leave = threading.Event(), threading.Event()

    class Slow(ByteModel):
        def decode(self, ids: object) -> bytes:
            inside.set()
            leave.wait(30)
            return b"done"

    model, said = Lent(Slow()), []
    user = threading.Thread(target=lambda: said.append(model.decode([1])))
    user.start()
    assert inside.wait(30)
    taker = threading.Thread(target=lambda: (model.take_back(), said.append("taken")))
    taker.start()
    assert not said
    leave.set()
    taker.join(30)
    user.join(30)
    assert said[0] == b"done"
    assert "taken" in said
