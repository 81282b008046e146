"""A state's fingerprint changes with everything that states depend on, and with nothing else."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from node.prewarm.fingerprint import fingerprint, hash_of, likeness
from node.settings import Engine


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights" * 1000)
    return path


def test_what_a_state_depends_on_counts(tmp_path: Path, weights: Path) -> None:
    plain = fingerprint(Engine(), weights, tmp_path)
    assert fingerprint(Engine(), weights, tmp_path) == plain
    for other in (
        Engine(context=4096),
        Engine(kv_tokens=4096),
        Engine(kv_type="q8_0"),
        Engine(flash_attention="off"),
        Engine(gpu_layers=0),
    ):
        assert fingerprint(other, weights, tmp_path) != plain
    for same in (Engine(slots=2), Engine(threads=3), Engine(step_ms=10), Engine(batch=256)):
        assert fingerprint(same, weights, tmp_path) == plain
    weights.write_bytes(b"other" * 1000)
    assert fingerprint(Engine(), weights, tmp_path) != plain


def test_the_echo_engine_has_no_model_file(tmp_path: Path) -> None:
    assert fingerprint(Engine(kind="echo"), None, tmp_path) != fingerprint(Engine(), None, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_hash_is_of_the_real_file_and_remembered_while_it_stays(tmp_path: Path, weights: Path) -> None:
    link, folder = tmp_path / "link.gguf", tmp_path / "states"
    link.symlink_to(weights)
    known = hash_of(link, folder)
    size, changed = weights.stat().st_size, weights.stat().st_mtime_ns
    weights.write_bytes(b"WEIGHTS" * 1000)
    os.utime(weights, ns=(changed, changed))
    assert weights.stat().st_size == size
    assert hash_of(link, folder) == known, "nobody looked again"
    os.utime(weights, ns=(changed + 1, changed + 1))
    assert hash_of(link, folder) != known


def test_a_note_that_cannot_be_read_is_made_again(
    tmp_path: Path, weights: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = hash_of(weights, tmp_path)
    (tmp_path / "model.json").write_text("{")
    with caplog.at_level(logging.WARNING):
        assert hash_of(weights, tmp_path) == known
    assert "hashed again" in caplog.text


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        hash_of(tmp_path / "nothing", tmp_path)


def test_nodes_that_make_the_same_tokens_are_alike(tmp_path: Path, weights: Path) -> None:
    plain = likeness(Engine(), weights, tmp_path)
    assert likeness(Engine(slots=2, context=512, threads=1), weights, tmp_path) == plain
    assert likeness(Engine(kv_type="q8_0"), weights, tmp_path) != plain
    assert likeness(Engine(kind="echo"), None, tmp_path) != likeness(Engine(), None, tmp_path) != plain
    copy = tmp_path / "elsewhere" / "other-name.gguf"
    copy.parent.mkdir()
    copy.write_bytes(weights.read_bytes())
    assert likeness(Engine(), copy, copy.parent) == plain
    copy.write_bytes(b"other" * 1000)
    assert likeness(Engine(), copy, copy.parent) != plain


def test_a_model_that_is_a_folder_is_told_by_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "onnx"
    (folder / "inner").mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"x" * (3 << 20))
    (folder / "config.json").write_text("{}")
    onnx = Engine(kind="onnx")
    plain = likeness(onnx, folder, tmp_path)
    assert likeness(onnx, folder, tmp_path) == plain
    (folder / "config.json").write_text('{"other": 1}')
    assert likeness(onnx, folder, tmp_path) != plain
