"""ONNX Runtime's errors become one of ours; the limits written down are those of the library."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.engine import onnx_library
from node.engine.onnx_graph import OPSETS
from node.errors import ModelFileError

pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: tools/install.py --extra onnx")


def test_its_errors_are_mapped_with_their_first_line(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"hello")
    with (
        pytest.raises(ModelFileError, match=r"cannot load it: .*Protobuf parsing failed") as failed,
        onnx_library.mapped("cannot load it", "do this"),
    ):
        onnx_library.onnxruntime().InferenceSession(str(tmp_path / "m.onnx"))
    assert failed.value.hint == "do this"
    assert "\n" not in failed.value.message


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(KeyError), onnx_library.mapped("x", "y"):
        raise KeyError("mine")


def test_the_version_names_the_package() -> None:
    assert onnx_library.version().startswith("onnxruntime")


def test_the_opsets_written_down_are_known_to_the_library() -> None:
    native = onnx_library.onnxruntime().capi.onnxruntime_pybind11_state
    newest = max(schema.since_version for schema in native.get_all_operator_schema() if schema.domain == "")
    assert OPSETS[1] in (newest, newest - 1), "the newest may still be in development"
