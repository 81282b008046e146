"""A plain graph, packed: runs in ONNX Runtime and gives the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from node.models.pack import pack
from tests.models.test_grid import q4_1

onnx = pytest.importorskip("onnx", reason="needs the extra convert: tools/install.py --extra convert")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: tools/install.py --extra onnx")

WIDTH, VOCABULARY = 64, 40


def plain_folder(path: Path) -> dict[str, np.ndarray]:
    """Embedding (the head's weights, turned), two products of one input, head: as the builder writes a tied model."""
    rng = np.random.default_rng(5)
    head = (rng.integers(-127, 128, (VOCABULARY, WIDTH)) * 0.01).astype(np.float32)
    head[:, ::32] = 1.27
    one, two = q4_1(rng, WIDTH, WIDTH // 32), rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) * 0.1
    weights = {"lm_head.weight": head.T, "one": one.T, "two": two.T}
    helper, tensor = onnx.helper, onnx.TensorProto
    nodes = [
        helper.make_node("Transpose", ["lm_head.weight"], ["embedding"], perm=[1, 0]),
        helper.make_node("Gather", ["embedding", "ids"], ["x"]),
        helper.make_node("MatMul", ["x", "one"], ["a"], name="/layers.0/one"),
        helper.make_node("MatMul", ["x", "two"], ["b"], name="/layers.0/two"),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("MatMul", ["c", "lm_head.weight"], ["logits"], name="/lm_head/MatMul"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("ids", tensor.INT64, ["b", "s"])],
        [helper.make_tensor_value_info("logits", tensor.FLOAT, ["b", "s", VOCABULARY])],
        [onnx.numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    path.mkdir()
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), str(path / "model.onnx"))
    (path / "genai_config.json").write_text("{}")
    return weights


def kinds(model: Any) -> list[str]:
    return [node.op_type for node in model.graph.node]


def test_the_packed_graph_gives_the_same_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = plain_folder(tmp_path / "plain")
    pack(tmp_path / "plain", tmp_path / "packed")
    assert capsys.readouterr().out.splitlines()[0] == "0 6"
    ids = np.array([[1, 5, 39]], np.int64)
    session = onnxruntime.InferenceSession(str(tmp_path / "packed" / "model.onnx"))
    (found,) = session.run(None, {"ids": ids})
    x = weights["lm_head.weight"].T[ids]
    expected = (x @ weights["one"] + x @ weights["two"]) @ weights["lm_head.weight"]
    error = np.abs(found - expected).std() / expected.std()
    assert error < 0.03, "the kernels round what goes in to 8 bits"


def test_what_is_kept_and_what_goes(tmp_path: Path) -> None:
    plain_folder(tmp_path / "plain")
    pack(tmp_path / "plain", tmp_path / "packed")
    model = onnx.load(str(tmp_path / "packed" / "model.onnx"), load_external_data=False)
    assert kinds(model).count("MatMulNBits") == 3
    assert "Transpose" not in kinds(model)
    assert kinds(model).count("GatherBlockQuantized") == 1
    assert kinds(model).count("ReduceSum") == 1, "only one of the two products has a 4-bit grid"
    bits = [
        a.i for node in model.graph.node if node.op_type == "MatMulNBits" for a in node.attribute if a.name == "bits"
    ]
    assert bits == [4, 8, 8]
    names = {weight.name for weight in model.graph.initializer}
    assert not names & {"one", "two", "lm_head.weight"}
    assert (tmp_path / "packed" / "genai_config.json").exists()
