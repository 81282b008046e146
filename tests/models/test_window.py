from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import ModelFileError
from node.models.window import Window
from tests.models.support import text


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return tmp_path_factory.mktemp("window") / "file"


def test_numbers_and_texts_in_order(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(struct.pack("<IQ", 7, 8) + text("ab") + text("long text") + b"end")
    with path.open("rb", buffering=0) as file:
        window = Window(file)
        assert (window.u32(), window.u64()) == (7, 8)
        assert window.text(10, "it") == "ab"
        assert window.text_cut(4) == "long"
        assert window.position == window.size - 3
        window.skip(1)
        assert window.take(2) == b"nd"
        with pytest.raises(ModelFileError, match="truncated"):
            window.take(1)


def test_limits_count_before_the_bytes_do(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(text("abcdef"))
    for attempt, complaint in (
        (lambda window: window.text(5, "it"), "it claims to be 6 bytes"),
        (lambda window: window.skip(15), "truncated"),
        (lambda window: window.skip_texts(2), "truncated"),
        (lambda window: window.take(1 << 62), "truncated"),
    ):
        with path.open("rb", buffering=0) as file, pytest.raises(ModelFileError, match=complaint):
            attempt(Window(file))


def test_a_text_that_is_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(text(b"\xff") * 2)
    with path.open("rb", buffering=0) as file:
        window = Window(file)
        assert window.text_cut(9) == "�"
        with pytest.raises(ModelFileError, match="it is not UTF-8"):
            window.text(9, "it")


@given(st.lists(st.integers(0, 100_000), max_size=40))
def test_texts_are_skipped_over_every_border_of_the_window(scratch: Path, lengths: list[int]) -> None:
    scratch.write_bytes(b"".join(text(bytes(length)) for length in lengths) + b"end")
    with scratch.open("rb", buffering=0) as file:
        window = Window(file)
        window.skip_texts(len(lengths))
        assert window.take(3) == b"end"


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    with path.open("rb", buffering=0) as file:
        window = Window(file)
        path.write_bytes(b"")
        with pytest.raises(ModelFileError, match="truncated"):
            window.u32()
