"""Weights in another form: made by llama.cpp, whole or not there at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from node.errors import ModelFileError
from node.models import gguf
from node.tuning import quantize
from node.tuning.quantize import TYPES, requantize
from node.tuning.variants import most_bytes
from tests.support import tiny_model

MOST = 4 << 20


@pytest.mark.parametrize("form", TYPES)
def test_every_form_is_made_and_is_what_it_is_called(tiny: Path, tmp_path: Path, form: str) -> None:
    target = tmp_path / "new" / "a.gguf"
    size = requantize(tiny, target, form, 1, MOST)
    made = gguf.read(target)
    assert size == target.stat().st_size == made.file_bytes
    assert form.startswith(made.quantization.removesuffix("_M"))
    assert made.parameters == gguf.read(tiny).parameters
    assert size <= most_bytes(form, made.parameters) * 1.1 + 20_000
    assert list(target.parent.iterdir()) == [target]


def test_what_is_quantized_already_is_packed_again(tiny: Path, tmp_path: Path) -> None:
    requantize(tiny, tmp_path / "four.gguf", "Q4_1", 1, MOST)
    requantize(tmp_path / "four.gguf", tmp_path / "eight.gguf", "Q8_0", 1, MOST)
    assert gguf.read(tmp_path / "eight.gguf").quantization == "Q8_0"


def test_the_file_that_grows_can_be_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny_model.write(tmp_path / "larger.gguf", blocks=6)
    monkeypatch.setattr(quantize, "_LOOK_S", 0.001)
    seen: list[int] = []
    size = requantize(source, tmp_path / "a.gguf", "Q6_K", 1, 8 << 20, seen.append)
    assert seen == sorted(seen)
    assert 0 < seen[-1] <= size


@pytest.mark.parametrize(
    "content", [b"", b"GGUF" + bytes(40), b"no model"], ids=["empty", "header only", "something else"]
)
def test_a_damaged_source_is_refused_and_leaves_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.gguf").write_bytes(content)
    with pytest.raises(ModelFileError, match=r"bad\.gguf as Q8_0") as error:
        requantize(tmp_path / "bad.gguf", tmp_path / "out" / "a.gguf", "Q8_0", 1, MOST)
    assert "verify" in (error.value.hint or "")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_truncated_source_is_refused_and_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    data = tiny.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[: len(data) * 2 // 3])
    with pytest.raises(ModelFileError):
        requantize(tmp_path / "cut.gguf", tmp_path / "out" / "a.gguf", "Q8_0", 1, MOST)
    assert list((tmp_path / "out").iterdir()) == []


def test_weights_that_are_no_numbers_are_refused(tiny: Path, tmp_path: Path) -> None:
    data = tiny.read_bytes()
    (tmp_path / "nan.gguf").write_bytes(data[: len(data) // 2] + b"\xff" * 4096 + data[len(data) // 2 + 4096 :])
    with pytest.raises(ModelFileError, match="damaged"):
        requantize(tmp_path / "nan.gguf", tmp_path / "out" / "a.gguf", "Q4_K_M", 1, MOST)
    assert list((tmp_path / "out").iterdir()) == []


def test_space_is_checked_before_anything_is_written(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no space") as error:
        requantize(tiny, tmp_path / "out" / "a.gguf", "Q8_0", 1, 1 << 60)
    assert "OUTPOST_HOME" in (error.value.hint or "")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_disk_that_fills_up_meanwhile_is_called_that(tiny: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the write fails in the middle of llama.cpp's own work."""
    program = f"""
import resource, signal
from pathlib import Path
from node.errors import ModelFileError
from node.tuning.quantize import requantize
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    requantize(Path({str(tiny)!r}), Path({str(tmp_path / "out" / "a.gguf")!r}), "Q8_0", 1, {MOST})
except ModelFileError as error:
    print(error.message)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "could not write tiny.gguf as Q8_0" in done.stdout
    assert list((tmp_path / "out").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelFileError, match="Cannot write"):
        requantize(tiny, tmp_path / "file" / "a.gguf", "Q8_0", 1, MOST)


def test_a_process_that_is_killed_leaves_a_part_and_never_the_name(tmp_path: Path) -> None:
    source = tiny_model.write(tmp_path / "larger.gguf", blocks=16)
    target = tmp_path / "out" / "a.gguf"
    program = f"""
from pathlib import Path
from node.tuning.quantize import requantize
requantize(Path({str(source)!r}), Path({str(target)!r}), "Q5_K_M", 1, {40 << 20})
"""
    child = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    part = target.with_name("a.gguf.part")
    for _ in range(3000):
        if part.exists() and part.stat().st_size:
            break
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert [path.name for path in target.parent.iterdir()] == ["a.gguf.part"]
    requantize(source, target, "Q4_0", 1, 40 << 20)
    assert [path.name for path in target.parent.iterdir()] == ["a.gguf"], "the next run writes over it"
