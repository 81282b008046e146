"""The file that was verified is the file that is loaded."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from node.errors import ModelFileError
from node.fleet.pinned import Pinned

DATA = bytes(range(256)) * 9000
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "model.gguf").write_bytes(DATA)
    return tmp_path / "model.gguf"


def test_what_was_hashed_is_what_is_read_whatever_bears_its_name(file: Path) -> None:
    pinned = Pinned(file, SHA256)
    evil = file.with_name("evil")
    evil.write_bytes(b"evil" * len(DATA))
    os.replace(evil, file)
    assert pinned.path != file
    assert pinned.path.read_bytes() == DATA
    pinned.check()
    file.unlink()
    assert pinned.path.read_bytes() == DATA
    pinned.close()
    pinned.close()


def test_a_flipped_byte_is_refused(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(12345)
        opened.write(b"\xff")
    handles = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ModelFileError, match="SHA-256 differs") as refused:
        Pinned(file, SHA256)
    assert "promised " + SHA256 in refused.value.message
    assert len(os.listdir("/proc/self/fd")) == handles


def test_who_writes_into_the_very_file_is_noticed(file: Path) -> None:
    pinned = Pinned(file, SHA256)
    with file.open("r+b") as opened:
        opened.write(b"\xff" * 5)
        opened.truncate()
    with pytest.raises(ModelFileError, match="was changed"):
        pinned.check()


def test_without_paths_of_descriptors_the_name_is_looked_at_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.fleet.pinned._BY_DESCRIPTOR", Path("/nowhere"))
    pinned = Pinned(file, SHA256)
    assert pinned.path == file
    pinned.check()
    evil = file.with_name("evil")
    evil.write_bytes(DATA)
    os.replace(evil, file)
    with pytest.raises(ModelFileError, match="was changed"):
        pinned.check()


@pytest.mark.parametrize("what", ["missing", "folder"])
def test_what_is_no_file_is_refused(tmp_path: Path, what: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ModelFileError):
        Pinned(tmp_path / what, SHA256)
