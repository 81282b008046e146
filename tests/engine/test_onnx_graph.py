"""A look at a graph before it is loaded: opset, inputs, and whether its weights are all there."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.engine import onnx_graph
from node.engine.onnx_graph import Value
from node.errors import ModelFileError
from tests.support.onnx_bytes import HEADS, SIZE, field, graph, outside, value_info


def read(folder: Path, content: bytes, data: int | None = None) -> onnx_graph.Graph:
    (folder / "model.onnx").write_bytes(content)
    if data is not None:
        (folder / "model.onnx.data").write_bytes(b"\0" * data)
    return onnx_graph.read(folder / "model.onnx")


def test_a_whole_graph(tmp_path: Path) -> None:
    weights = [outside("w", location="model.onnx.data", offset=100, length=28), field(8, "inside") + field(9, b"1234")]
    content = graph(weights=weights)
    found = read(tmp_path, content, 128)
    assert found.opset == 21
    assert found.weight_bytes == len(content) + 128
    assert found.inputs["past_key_values.1.key"] == Value("past_key_values.1.key", "float32", (-1, HEADS, -1, SIZE))
    assert "logits" in found.outputs


@pytest.mark.parametrize("opset", [6, 27, 99, 0])
def test_a_wrong_opset(tmp_path: Path, opset: int) -> None:
    with pytest.raises(ModelFileError, match=f"it needs opset {opset}, and ONNX Runtime runs 7 to 26"):
        read(tmp_path, graph(opset=opset))


def test_other_sets_of_operators_do_not_count(tmp_path: Path) -> None:
    assert read(tmp_path, graph() + field(8, field(1, "com.microsoft") + field(2, 99))).opset == 21
    with pytest.raises(ModelFileError, match="more than 64 sets"):
        read(tmp_path, graph() + field(8, field(1, "com.microsoft")) * 64)


def test_a_folder_without_its_data_file(tmp_path: Path) -> None:
    content = graph(weights=[outside("w", location="model.onnx.data", offset=0, length=5000)])
    with pytest.raises(ModelFileError, match=r"data file model.onnx.data is missing \(5,000 bytes of weights"):
        read(tmp_path, content)


def test_a_data_file_that_is_too_short(tmp_path: Path) -> None:
    content = graph(weights=[outside("w", location="model.onnx.data", offset=0, length=5000)])
    with pytest.raises(ModelFileError, match=r"truncated: the weight 'w' ends at byte 5,000 but the file has 4,999"):
        read(tmp_path, content, 4999)


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "..", "", "a\\b"])
def test_weights_lie_beside_the_graph_and_nowhere_else(tmp_path: Path, location: str) -> None:
    with pytest.raises(ModelFileError, match="no file beside it"):
        read(tmp_path, graph(weights=[outside("w", location=location, offset=0, length=1)]))


def test_a_place_that_is_no_number(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="claims to lie at"):
        read(tmp_path, graph(weights=[outside("w", location="x", offset="-1", length="1")]))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"hello", "not what it claims|truncated"),
        (field(1, 10), "it has no graph"),
        (field(7, value_info("x", 1, [1])) + field(7, 5), "a number stands where a message must be"),
    ],
)
def test_what_is_no_graph(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(ModelFileError, match=reason):
        read(tmp_path, content)


def test_too_many_dimensions(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="has 9 dimensions"):
        read(tmp_path, field(7, field(11, value_info("x", 1, [1] * 9))) + field(8, field(1, "") + field(2, 21)))


def test_every_cut_is_found(tmp_path: Path) -> None:
    content = graph()
    for length in range(1, len(content), 7):
        with pytest.raises(ModelFileError):
            read(tmp_path, content[:length])


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="Cannot read"):
        onnx_graph.read(tmp_path / "none.onnx")
