"""Conversions: whole or not there, made anew when the file or a package changes, with words for what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from node.errors import ModelFileError
from node.models import convert
from tests.models.support import gguf_bytes

Said = list[tuple[str, int, int]]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf_bytes())
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "models" / "tiny-onnx-cpu"


def steps(monkeypatch: pytest.MonkeyPatch, failing: str = "") -> list[str]:
    """Replace the three programs by small ones that write a file, or fail."""
    ran: list[str] = []
    real = convert._step

    def step(label: str, arguments: list[str], work: Path, report: object) -> None:
        ran.append(label)
        target = arguments[arguments.index("-o") + 1] if "-o" in arguments else arguments[-1]
        code = (
            f"import pathlib; p = pathlib.Path({target!r}); p.mkdir(); (p / 'model.onnx').write_text('x'); print('2/3')"
        )
        if label.startswith(failing or "never"):
            code = "print('first'); raise SystemExit('the reason')"
        real(label, ["-c", code], work, report)  # type: ignore[arg-type]

    monkeypatch.setattr(convert, "_step", step)
    monkeypatch.setattr(convert, "missing", list)
    return ran


def test_three_steps_make_a_folder_once(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran, said = steps(monkeypatch), Said()
    assert convert.convert(source, folder, "cpu", lambda *words: said.append(words)) == folder
    assert ran == ["reading the weights", "building the graph", "packing the weights"]
    assert ("building the graph", 2, 3) in said
    assert json.loads((folder / convert.MANIFEST).read_text())["source"] == "tiny.gguf"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name], "nothing else is left"
    convert.convert(source, folder, "cpu", lambda *_: None)
    assert len(ran) == 3, "it is there and current"


def test_a_cuda_build_is_quantized_by_the_builder(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = steps(monkeypatch)
    convert.convert(source, folder, "cuda", lambda *_: None)
    assert ran == ["reading the weights", "building the graph"]


def test_another_file_another_target_another_package_make_it_anew(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps(monkeypatch)
    convert.convert(source, folder, "cpu", lambda *_: None)
    assert convert.is_current(folder, source, "cpu")
    assert not convert.is_current(folder, source, "cuda")
    monkeypatch.setattr(convert, "_versions", lambda: ["torch 99"])
    assert not convert.is_current(folder, source, "cpu")
    convert.convert(source, folder, "cpu", lambda *_: None)
    assert convert.is_current(folder, source, "cpu")
    source.write_bytes(gguf_bytes() + b"\0")
    assert not convert.is_current(folder, source, "cpu")


@pytest.mark.parametrize("failing", ["reading", "building", "packing"])
def test_a_step_that_fails_leaves_nothing(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    steps(monkeypatch, failing)
    with pytest.raises(ModelFileError, match=f"^{failing.capitalize()} .* failed: the reason"):
        convert.convert(source, folder, "cpu", lambda *_: None)
    assert list(folder.parent.iterdir()) == []


def test_a_step_that_is_killed_says_so(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(ModelFileError, match=r"Reading was ended by signal 9") as failed:
        convert._step("reading", ["-c", code], tmp_path, lambda *_: None)
    assert "memory" in str(failed.value.hint)


def test_what_a_killed_conversion_left_is_thrown_away(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps(monkeypatch)
    half = folder.with_name(folder.name + ".tmp") / "whole"
    half.mkdir(parents=True)
    (half / "half.onnx").write_text("half")
    convert.convert(source, folder, "cpu", lambda *_: None)
    assert not (folder / "half.onnx").exists()
    assert not half.parent.exists()


def test_missing_packages_are_named_with_what_to_install(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "missing", lambda: ["torch", "onnx"])
    with pytest.raises(ModelFileError, match="not installed: torch, onnx") as failed:
        convert.convert(source, folder, "cpu", lambda *_: None)
    assert "tools/install.py --extra convert" in str(failed.value.hint)
    assert not folder.parent.exists()


def test_too_little_disk(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps(monkeypatch)
    monkeypatch.setattr(convert, "free_bytes", lambda _: 1)
    with pytest.raises(ModelFileError, match=r"takes 0 MB of disk for a while"):
        convert.convert(source, folder, "cpu", lambda *_: None)


def test_a_damaged_file_is_refused_before_anything_starts(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = steps(monkeypatch)
    source.write_bytes(gguf_bytes()[:-40])
    with pytest.raises(ModelFileError, match="truncated"):
        convert.convert(source, folder, "cpu", lambda *_: None)
    assert ran == []


@pytest.mark.parametrize(
    ("line", "progress"),
    [
        ("12 345\n", (12, 345)),
        ("Loading weights:  50%|█| 136/272 [00:00<00:00, 18213.11it/s]", (136, 272)),
        ("Reading layer 7", (7, 0)),
        ("Saving processing files", None),
        ("9/0", None),
    ],
)
def test_progress_is_read_from_lines(line: str, progress: tuple[int, int] | None) -> None:
    assert convert._progress(line) == progress


@pytest.mark.onnx
def test_the_default_model_was_converted(onnx_folder: Path, weights: Path) -> None:
    assert convert.is_current(onnx_folder, weights, "cpu")
    assert (onnx_folder / "model.onnx.data").stat().st_size < 1.3 * weights.stat().st_size
