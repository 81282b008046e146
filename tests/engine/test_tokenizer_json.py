"""tokenizer.json in small: markers, begin tokens, and files that are none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from node.engine.tokenizer_json import JsonVocabulary
from node.errors import ModelFileError


def document(**changes: Any) -> str:
    vocab = {"<s>": 0, "<|im_end|>": 1, **{letter: number + 2 for number, letter in enumerate("abcdĠ|<>_imend")}}
    vocab = {text: number for number, text in enumerate(dict.fromkeys(vocab))}
    specials = ("<s>", "<|im_end|>")
    added = [
        {"id": vocab[text], "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False} for text in specials
    ]  # fmt: skip
    return json.dumps({
        "version": "1.0", "added_tokens": added, "normalizer": None, "truncation": None, "padding": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": []}, **changes,
    })  # fmt: skip


def vocabulary(config: dict[str, Any] | None = None, **changes: Any) -> JsonVocabulary:
    return JsonVocabulary(document(**changes), config or {}, 16, [0])


def test_markers_stay_words_unless_asked() -> None:
    found = vocabulary()
    assert found.encode("a<|im_end|>b", special=True, bos=False)[1] == 1
    plain = found.encode("a<|im_end|>b", special=False, bos=False)
    assert 1 not in plain
    assert found.decode(plain) == b"a<|im_end|>b"
    assert found.encode("", special=False, bos=False) == []


def test_control_tokens_show_no_text() -> None:
    found = vocabulary()
    assert found.piece(1) == b""
    assert found.raw(1) == b"<|im_end|>"
    assert found.longest == len("<|im_end|>")
    assert found.decode([1, 2]) == found.piece(2)


def test_known_markers_end_a_text_also_where_the_folder_names_another() -> None:
    assert vocabulary().eog == {0, 1}


@pytest.mark.parametrize(
    ("config", "processor", "adds"),
    [
        ({"bos_token": "<s>"}, None, False),
        ({"bos_token": "<s>", "add_bos_token": True}, None, True),
        ({"bos_token": {"content": "<s>"}}, "template", True),
        ({"bos_token": "<s>", "add_bos_token": False}, "template", False),
        ({"bos_token": "<none>", "add_bos_token": True}, None, False),
    ],
)
def test_the_begin_token(config: dict[str, Any], processor: str | None, adds: bool) -> None:
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
    }
    found = vocabulary(config, post_processor=template if processor else None)
    assert found.adds_bos is adds
    ids = found.encode("a", special=False, bos=found.adds_bos)
    assert (ids[0] == 0) is adds


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"added_tokens": 5}'])
def test_what_is_no_tokenizer(text: str) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer.json cannot be used"):
        JsonVocabulary(text, {}, 16, [0])
