"""An ONNX folder is refused with the reason and the numbers, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from node.engine import onnx_folder
from node.errors import ModelFileError
from tests.support.onnx_bytes import HEADS, LAYERS, SIZE, STATES, VOCABULARY, graph, write_folder


def test_a_whole_folder(tmp_path: Path) -> None:
    found = onnx_folder.read(write_folder(tmp_path / "m", eos_token_id=[2, 0]))
    assert (found.layers, found.heads, found.head_size, found.cache_type) == (LAYERS, HEADS, SIZE, "float32")
    assert (found.vocabulary_size, found.context_length, found.state_size) == (VOCABULARY, 64, STATES)
    assert found.eos == (2, 0)
    assert found.pruned
    assert found.built_for == ()
    assert found.chat_template is None
    assert onnx_folder.is_folder(tmp_path / "m")
    assert not onnx_folder.is_folder(tmp_path)


def test_what_it_was_built_for(tmp_path: Path) -> None:
    options = {"provider_options": [{"cuda": {"enable_cuda_graph": "0"}}]}
    found = onnx_folder.read(write_folder(tmp_path, graph(cache=10), decoder_session_options=options))
    assert found.built_for == ("cuda",)
    assert found.cache_type == "float16"


def test_a_graph_without_hidden_states_has_none(tmp_path: Path) -> None:
    assert onnx_folder.read(write_folder(tmp_path, graph(states=False))).state_size == 0


def test_the_template_is_a_file_or_part_of_the_configuration(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "tokenizer_config.json").write_text('{"chat_template": "from config", "bos_token": "<s>"}')
    assert onnx_folder.read(folder).chat_template == "from config"
    (folder / "chat_template.jinja").write_text("from file")
    found = onnx_folder.read(folder)
    assert found.chat_template == "from file"
    assert found.tokenizer_config["bos_token"] == "<s>"


@pytest.mark.parametrize("name", ["genai_config.json", "tokenizer.json"])
def test_a_missing_file(tmp_path: Path, name: str) -> None:
    (write_folder(tmp_path) / name).unlink()
    with pytest.raises(ModelFileError, match=f"no ONNX model that can be served: it has no {name}"):
        onnx_folder.read(tmp_path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"whole_engine": {"dynamic_batching": {}}}, "paged cache"),
        ({"search_past_present_share_buffer": False}, "new cache at every step"),
        ({"decoder_sliding_window": {"window_size": 512}}, "sliding window"),
        ({"decoder_filename": "../model.onnx"}, "no file beside it"),
        ({"decoder_filename": "other.onnx"}, "Cannot read"),
        ({"decoder_num_hidden_layers": 3}, r"do not fit together: 4 inputs and outputs are missing, first past_key_v"),
        ({"decoder_num_hidden_layers": 0}, "num_hidden_layers"),
        ({"decoder_head_size": 5}, r"is float32 \[-1, 3, -1, 4\], but it must be .*\[-1, 3, -1, 5\]"),
        ({"decoder_inputs": {"past_key_names": "past"}}, "without a %d"),
        ({"vocab_size": 11}, r"gives logits \[-1, 1, 10\], but its vocabulary has 11 tokens"),
        ({"vocab_size": 1 << 30}, "vocab_size"),
        ({"eos_token_id": "two"}, "eos_token_id"),
    ],
)
def test_what_cannot_be_run(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelFileError, match=reason):
        onnx_folder.read(write_folder(tmp_path, **changes))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (graph(cache=16), "bfloat16"),
        (graph(leave_out="attention_mask"), "attention_mask"),
        (graph(opset=30), "opset 30"),
    ],
)
def test_graphs_that_cannot_be_run(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(ModelFileError, match=reason):
        onnx_folder.read(write_folder(tmp_path, content))


def test_a_dimension_that_the_graph_leaves_open(tmp_path: Path) -> None:
    assert onnx_folder.read(write_folder(tmp_path, graph(head_size="size"))).head_size == SIZE


def test_files_that_are_too_large_or_not_text(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "genai_config.json").write_text(" " * ((1 << 20) + 1))
    with pytest.raises(ModelFileError, match=r"has 1,048,577 bytes; at most 1,048,576 can be"):
        onnx_folder.read(folder)
    (folder / "genai_config.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelFileError, match="not UTF-8"):
        onnx_folder.read(folder)
    (folder / "genai_config.json").write_text("{")
    with pytest.raises(ModelFileError, match="cannot be used"):
        onnx_folder.read(folder)
