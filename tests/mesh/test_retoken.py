"""Foreign text as own tokens, and beginnings that come twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.generation import Token
from node.mesh.retoken import Continuation, retokenized
from tests.support.service import INFO, ByteModel


@given(st.text(max_size=40))
def test_the_pieces_are_the_text(text: str) -> None:
    tokens = retokenized(ByteModel(), text)
    assert b"".join(token.piece for token in tokens) == text.encode()
    assert bool(tokens) == bool(text)
    assert all(0 <= token.id < INFO.vocabulary_size for token in tokens)


class Spaced(ByteModel):
    """Adds a blank before a text, as some vocabularies do."""

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return super().encode(f" {text}" if text else "")


class Lossy(ByteModel):
    """Cannot say capital letters."""

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return super().encode(text.lower())


class Mute(ByteModel):
    """Has no token for anything."""

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return []


def test_a_vocabulary_that_adds_a_blank_adds_none_here() -> None:
    assert retokenized(Spaced(), "word") == [Token(byte, bytes([byte])) for byte in b"word"]


@pytest.mark.parametrize("model", [Lossy(), Mute()])
def test_where_tokens_cannot_say_it_the_text_still_comes_whole(model: ByteModel) -> None:
    tokens = retokenized(model, "Ab")
    assert b"".join(token.piece for token in tokens) == b"Ab"


@pytest.mark.model
def test_the_real_vocabulary(weights: object) -> None:
    from node.engine.llama import LlamaEngine
    from node.settings import Engine

    engine = LlamaEngine(Engine(context=512, slots=1), "x", weights)  # type: ignore[arg-type]
    try:
        for text in ("Hello world", " and", "\n\n", "ä€🙂", "<|im_end|>", "  two"):
            tokens = retokenized(engine.model, text)
            assert b"".join(token.piece for token in tokens) == text.encode()
            assert [engine.model.decode((token.id,)) for token in tokens] == [token.piece for token in tokens]
    finally:
        engine.close()


CONTINUATIONS = [
    ("", ["a", "b"], "ab"),
    ("Once upon", [" a", " time"], " a time"),
    ("Once upon", ["On", "ce up", "on a", " time"], " a time"),
    ("Once upon", ["Once upon"], ""),
    ("Once upon", ["Onc", "e more"], "Once more"),
    ("Once upon", ["On"], "On"),
    ("aa", ["a", "b"], "ab"),
]


@pytest.mark.parametrize(("said", "pieces", "new"), CONTINUATIONS)
def test_what_was_said_is_not_said_again(said: str, pieces: list[str], new: str) -> None:
    rest = Continuation(said)
    assert "".join(map(rest.push, pieces)) + rest.finish() == new
