from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from node.models.partial import OverLimit, Partial

SHA = "ab" * 32


def partial_in(folder: Path, limit: int = 100, sha256: str = SHA) -> Partial:
    return Partial(folder / "m.gguf.part", limit=limit, sha256=sha256)


def test_it_grows_hashed_and_settles_alone(tmp_path: Path) -> None:
    with partial_in(tmp_path) as partial:
        partial.write(b"abc")
        partial.finish_part()
        partial.write(b"def")
        assert (partial.position, partial.start, partial.part, partial.room) == (6, 3, 1, 94)
        assert partial.hexdigest() == hashlib.sha256(b"abcdef").hexdigest()
        partial.settle(tmp_path / "m.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
    assert (tmp_path / "m.gguf").read_bytes() == b"abcdef"


def test_what_is_left_is_taken_up_at_the_same_byte(tmp_path: Path) -> None:
    with partial_in(tmp_path) as partial:
        partial.write(b"abc")
        partial.finish_part()
        partial.name_source('"tag"')
        partial.write(b"de")
    with partial_in(tmp_path) as partial:
        assert (partial.position, partial.start, partial.part, partial.validator) == (5, 3, 1, '"tag"')
        partial.write(b"f")
        assert partial.hexdigest() == hashlib.sha256(b"abcdef").hexdigest()
        partial.rewind()
        partial.write(b"X")
        assert partial.hexdigest() == hashlib.sha256(b"abcX").hexdigest()
    assert (tmp_path / "m.gguf.part").read_bytes() == b"abcX"


def test_it_is_taken_up_after_a_kill_in_the_first_part(tmp_path: Path) -> None:
    partial = partial_in(tmp_path)
    partial.__enter__()
    partial.write(b"abc")
    partial._file.close()  # as the kernel does for a killed process: nothing else happens
    with partial_in(tmp_path) as again:
        assert again.position == 3


@pytest.mark.parametrize("note", [b"", b"{", b"\xff", b'{"sha256": 1}', b'{"sha256":"cd","part":0,"start":0}', None])
def test_bytes_that_nobody_vouches_for_are_dropped(tmp_path: Path, note: bytes | None) -> None:
    (tmp_path / "m.gguf.part").write_bytes(b"abc")
    if note is not None:
        (tmp_path / "m.gguf.part.json").write_bytes(note)
    with partial_in(tmp_path) as partial:
        assert (partial.position, partial.part) == (0, 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kept", "start"), [(3, 5), (200, 0)])
def test_a_file_that_does_not_fit_its_note_begins_anew(tmp_path: Path, kept: int, start: int) -> None:
    (tmp_path / "m.gguf.part").write_bytes(bytes(kept))
    (tmp_path / "m.gguf.part.json").write_text(f'{{"sha256":"{SHA}","part":1,"start":{start}}}')
    with partial_in(tmp_path) as partial:
        assert (partial.position, partial.start, partial.part) == (0, 0, 0)


def test_another_promise_voids_what_is_left(tmp_path: Path) -> None:
    with partial_in(tmp_path) as partial:
        partial.write(b"abc")
    with partial_in(tmp_path, sha256="cd" * 32) as partial:
        assert partial.position == 0


def test_it_never_holds_more_than_its_limit(tmp_path: Path) -> None:
    with partial_in(tmp_path, limit=4) as partial:
        partial.write(b"abc")
        with pytest.raises(OverLimit, match="more than the 4 bytes"):
            partial.write(b"de")
        assert (tmp_path / "m.gguf.part").stat().st_size == 3


def test_an_empty_one_leaves_nothing(tmp_path: Path) -> None:
    with partial_in(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
