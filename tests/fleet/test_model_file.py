"""What is refused before a model is loaded."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from node.errors import ModelFileError
from node.fleet.model_file import model_file
from tests.conftest import settings
from tests.models.support import PAIRS, gguf_bytes, pair

# 4,000 layers of a million numbers: a cache of terabytes.
HUGE = (
    *PAIRS,
    pair("llama.block_count", 4, struct.pack("<I", 4000)),
    pair("llama.embedding_length", 4, struct.pack("<I", 1 << 20)),
    pair("llama.attention.head_count", 4, struct.pack("<I", 1)),
)


def test_echo_needs_none() -> None:
    assert model_file(settings(engine_kind="echo")) == ("echo", None)


def test_a_file_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(gguf_bytes())
    assert model_file(settings(model_name=str(tmp_path / "tiny.gguf"))) == ("tiny", tmp_path / "tiny.gguf")


@pytest.mark.model
def test_a_model_by_its_name(weights: Path) -> None:
    assert model_file(settings()) == ("smollm2-135m-instruct", weights)


def test_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(gguf_bytes()[:-40])
    with pytest.raises(ModelFileError, match="truncated"):
        model_file(settings(model_name=str(tmp_path / "cut.gguf")))


def test_a_model_larger_than_memory_is_refused_with_the_numbers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "large.gguf").write_bytes(gguf_bytes(HUGE))
    with pytest.raises(ModelFileError, match=r"large.gguf needs more memory than there is: [\d,]+ MiB .*KV cache"):
        model_file(settings(model_name=str(tmp_path / "large.gguf")))
    model_file(settings(model_name=str(tmp_path / "large.gguf"), engine_oversize="allow"))
    assert "less memory is free than the model may need" in caplog.text
