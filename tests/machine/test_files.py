"""Reads that are bounded and never raise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.machine import files
from tests.support.machines import plant


def test_text_is_stripped_and_cut(tmp_path: Path) -> None:
    plant(tmp_path, {"model": " NVIDIA Jetson\0\n", "huge": "x" * 100_000})
    assert files.text(tmp_path / "model") == "NVIDIA Jetson"
    assert len(files.text(tmp_path / "huge")) == 64 << 10
    assert files.text(tmp_path / "huge", 10) == "x" * 10


def test_what_cannot_be_read_is_empty(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")  # must not hang
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x80 1")
    for name in ("none", "folder", "pipe", "loop", "nul\0name", "x" * 5000):
        assert files.text(tmp_path / name) == ""
    assert files.text(tmp_path / "binary").endswith(" 1")
    assert files.text(Path("/dev/zero")) == ""


def test_a_file_that_fails_while_it_is_read() -> None:
    assert files.text(Path("/proc/self/mem")) == ""  # its first page is mapped nowhere


def test_names_in_their_natural_order(tmp_path: Path) -> None:
    plant(tmp_path, dict.fromkeys(["zone10", "zone2", "fan", "zone", "2b", "10a"], ""))
    assert files.names(tmp_path) == ["2b", "10a", "fan", "zone", "zone2", "zone10"]
    assert files.names(tmp_path / "none") == []
    assert files.names(tmp_path / "fan") == []


def test_names_are_bounded(tmp_path: Path) -> None:
    plant(tmp_path, {f"{number}": "" for number in range(4100)})
    assert len(files.names(tmp_path)) == 4096


@given(st.sets(st.text(min_size=1, max_size=12), max_size=8))
def test_any_names_have_one_order(names: set[str]) -> None:
    assert sorted(names, key=files._natural) == sorted(sorted(names), key=files._natural)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("0", 0),
        ("-1", -1),
        ("9" * 19, int("9" * 19)),
        ("9" * 20, None),
        ("1.5", None),
        ("", None),
        (None, None),
        ("²", None),
    ],
)
def test_numbers(word: str | None, value: int | None) -> None:
    assert files.number(word) == value


def test_fields(tmp_path: Path) -> None:
    plant(tmp_path, {"uevent": "DRIVER=intel_vpu\nnonsense\nPCI_ID=8086:7D1D\n"})
    assert files.fields(tmp_path / "uevent", "=") == {"DRIVER": "intel_vpu", "PCI_ID": "8086:7D1D"}


@pytest.mark.parametrize(
    ("word", "cpus"),
    [
        ("0", {0}),
        ("0-3,8", {0, 1, 2, 3, 8}),
        ("3-1", set()),
        ("0-", set()),
        ("", set()),
        ("all", set()),
        ("0-99999", set()),
        ("9998-9999", set()),  # beyond what a kernel can have
    ],
)
def test_lists_of_cpus(word: str, cpus: set[int]) -> None:
    assert files.cpu_list(word) == cpus


@given(st.text(alphabet="0123456789,-x", max_size=40))
def test_any_list_is_survived(word: str) -> None:
    assert all(0 <= cpu < 8192 for cpu in files.cpu_list(word))
