"""Tokens and bytes of the default model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.engine.llama import LlamaEngine
from node.engine.vocabulary import Vocabulary

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def vocabulary(llama_engine: LlamaEngine) -> Vocabulary:
    return llama_engine._decoder.vocabulary


def test_any_text_goes_there_and_back(vocabulary: Vocabulary) -> None:
    # Not every character: the default model has no token for some control bytes and for planes above 3.
    @given(st.text("abcXYZ éñß漢字 👍🦫\n\t.,!?<|>_im0129'\"", max_size=40))
    def check(text: str) -> None:
        assert vocabulary.decode(vocabulary.encode(text, special=False, bos=False)).decode() == text

    check()


def test_markers_are_parsed_only_when_asked(vocabulary: Vocabulary) -> None:
    assert len(vocabulary.encode("<|im_end|>", special=True, bos=False)) == 1
    assert len(vocabulary.encode("<|im_end|>", special=False, bos=False)) > 1
    assert "<|im_end|>" in vocabulary.control_texts


def test_control_tokens_show_no_text_but_have_bytes(vocabulary: Vocabulary) -> None:
    (end,) = vocabulary.encode("<|im_end|>", special=True, bos=False)
    assert vocabulary.is_control(end)
    assert vocabulary.piece(end) == b""
    assert vocabulary.raw(end) == b"<|im_end|>"
    assert end in vocabulary.eog
    assert vocabulary.eos_text == "<|im_end|>"


def test_an_emoji_may_be_split_over_tokens(vocabulary: Vocabulary) -> None:
    ids = vocabulary.encode("🦫", special=False, bos=False)
    assert len(ids) > 1
    assert b"".join(vocabulary.piece(token) for token in ids).decode() == "🦫"


def test_empty_text_and_no_token(vocabulary: Vocabulary) -> None:
    assert vocabulary.encode("", special=True, bos=False) == []
    assert vocabulary.token_text(-1) == ""
    assert vocabulary.decode([]) == b""


def test_a_long_text_takes_one_call(vocabulary: Vocabulary) -> None:
    assert len(vocabulary.encode("word " * 20_000, special=False, bos=False)) >= 20_000
