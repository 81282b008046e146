"""The tokenizer of a GGUF file: digits are cut apart where its model was trained so."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.models import unpack

BYTES = {"type": "ByteLevel", "use_regex": True}


def test_digits_stand_alone_where_the_file_says_so() -> None:
    found = unpack.cut_digits({"model": 1, "pre_tokenizer": BYTES}, "smollm")
    assert found == {
        "model": 1,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTES]},
    }
    assert unpack.cut_digits({"pre_tokenizer": None}, "smollm")["pre_tokenizer"]["pretokenizers"] == [
        {"type": "Digits", "individual_digits": True}
    ]


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", ""])
def test_others_stay_as_they_are(pre: str) -> None:
    assert unpack.cut_digits({"pre_tokenizer": BYTES}, pre) == {"pre_tokenizer": BYTES}


@pytest.mark.model
def test_the_default_model_says_how_it_is_cut(weights: Path) -> None:
    pytest.importorskip("gguf", reason="needs the extra convert: tools/install.py --extra convert")
    assert unpack.pre_tokenizer(weights) == "smollm"
