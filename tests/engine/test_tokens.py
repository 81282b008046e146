"""Both vocabularies of the default model say the same: a request means the same on both engines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.engine import onnx_folder as folders
from node.engine.llama import LlamaEngine
from node.engine.tokenizer_json import JsonVocabulary
from node.engine.tokens import Tokens

pytestmark = [pytest.mark.model, pytest.mark.onnx]


@pytest.fixture(scope="module")
def pair(llama_engine: LlamaEngine, onnx_folder: Path) -> tuple[Tokens, Tokens]:
    found = folders.read(onnx_folder)
    own = JsonVocabulary(found.tokenizer, found.tokenizer_config, found.vocabulary_size, found.eos)
    return llama_engine._decoder.vocabulary, own


def test_what_the_tokens_mean(pair: tuple[Tokens, Tokens]) -> None:
    one, other = pair
    assert one.size == other.size
    assert one.eog == other.eog
    assert one.longest == other.longest
    assert one.adds_bos == other.adds_bos
    assert (one.bos_text, one.eos_text) == (other.bos_text, other.eos_text)
    assert set(one.control_texts) == set(other.control_texts)
    assert [one.piece(token) for token in range(one.size)] == [other.piece(token) for token in range(other.size)]


def test_texts_are_cut_alike(pair: tuple[Tokens, Tokens]) -> None:
    one, other = pair

    @given(st.text("abcXYZ éñß漢字 👍\n\t.,!?<|>_im0129'\"", max_size=60))
    def check(text: str) -> None:
        assert one.encode(text, special=False, bos=False) == other.encode(text, special=False, bos=False)

    check()
    source = Path(__file__).read_text()
    assert one.encode(source, special=False, bos=False) == other.encode(source, special=False, bos=False)


def test_markers_are_tokens_only_when_asked(pair: tuple[Tokens, Tokens]) -> None:
    text = "<|im_start|>user\nhi<|im_end|>\n"
    one, other = pair
    assert one.encode(text, special=True, bos=False) == other.encode(text, special=True, bos=False)
    plain = other.encode(text, special=False, bos=False)
    assert other.decode(plain).decode() == text
    assert not set(plain) & other.eog
