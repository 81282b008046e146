"""A file is whole or it is the one before, and every write reaches the disk in order."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from node.fleet import durable


def test_it_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a"
    durable.write(path, b"one")
    durable.write(path, b"two", mode=0o600)
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_is_on_disk_before_it_has_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    def note_replace(old: Path, new: Path) -> None:
        done.append("name")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    durable.write(tmp_path / "a", b"x")
    assert done == ["file", "name", "folder"]


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    durable.write(path, b"one")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        durable.write(path, b"two")
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_that_somebody_laid_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / ".a.new").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        durable.write(tmp_path / "a", b"x")
    assert not (tmp_path / "elsewhere").exists()


def test_folders(tmp_path: Path) -> None:
    durable.make_folder(tmp_path / "a" / "b" / "c")
    durable.make_folder(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
