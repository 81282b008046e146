"""What is refused before a model is loaded."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from node.errors import ModelFileError, SettingsError
from node.fleet.model_file import model_file
from tests.conftest import settings
from tests.models.support import PAIRS, gguf_bytes, pair
from tests.support.onnx_bytes import graph, outside, write_folder

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


def test_an_onnx_folder_by_its_path(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "mine")
    assert model_file(settings(engine_kind="onnx", model_name=str(folder))) == ("mine", folder)


def test_a_model_that_was_not_converted_is_told_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path))
    with pytest.raises(ModelFileError, match="was not converted to ONNX yet") as refused:
        model_file(settings(engine_kind="onnx"))
    assert refused.value.hint == "outpost models convert smollm2-135m-instruct"
    folder = write_folder(tmp_path / "models" / "smollm2-135m-instruct-onnx-cpu")
    assert model_file(settings(engine_kind="onnx")) == ("smollm2-135m-instruct", folder)


def test_an_onnx_folder_that_cannot_be_served(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "mine", graph(opset=99))
    with pytest.raises(ModelFileError, match="it needs opset 99"):
        model_file(settings(engine_kind="onnx", model_name=str(folder)))


def test_weights_larger_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path / "mine", graph(weights=[outside("w", location="data", offset=0, length=1)]))
    with (folder / "data").open("wb") as file:
        file.truncate(1 << 42)  # a hole
    named = {"engine_kind": "onnx", "model_name": str(folder)}
    with pytest.raises(ModelFileError, match=r"mine needs more memory than there is: 4,194,304 MiB of weights"):
        model_file(settings(**named))
    assert model_file(settings(**named, engine_oversize="allow"))[1] == folder


def test_the_format_of_an_onnx_cache_cannot_be_set(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "mine")
    with pytest.raises(SettingsError, match=r"engine\.kv_type is llama\.cpp's"):
        model_file(settings(engine_kind="onnx", model_name=str(folder), engine_kv_type="q8_0"))
