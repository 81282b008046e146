"""Whole characters and stop strings, whatever the token borders."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.stream.text import TextAssembler


def run(pieces: list[bytes], stop: tuple[str, ...] = ()) -> tuple[str, bool]:
    assembler = TextAssembler(stop)
    out = ""
    for piece in pieces:
        out += assembler.push(piece)
        assert "�" not in out or b"\xef\xbf\xbd" in b"".join(pieces)
    return out + assembler.finish(), assembler.stopped


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    borders = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(borders)]


def test_a_split_emoji_comes_whole() -> None:
    assembler = TextAssembler()
    parts = [assembler.push(bytes([byte])) for byte in "a👩‍🚀z".encode()]
    assert "".join(parts) == "a👩‍🚀z"
    assert all("�" not in part for part in parts)


def test_half_a_character_at_the_end_is_dropped() -> None:
    assert run([b"ok", "é".encode()[:1]]) == ("ok", False)


def test_really_invalid_bytes_are_marked() -> None:
    assembler = TextAssembler()
    assert assembler.push(b"a\xffb") == "a�b"


def test_stop_string_over_token_borders_never_leaks() -> None:
    assembler = TextAssembler(("</end>",))
    shown = [assembler.push(piece) for piece in (b"hi <", b"/en", b"d> more")]
    assert shown == ["hi ", "", ""]
    assert assembler.stopped
    assert assembler.finish() == ""


def test_false_start_is_flushed() -> None:
    assert run([b"a <", b"/e", b"lse"], ("</end>",)) == ("a </else", False)
    assert run([b"a <", b"/e"], ("</end>",)) == ("a </e", False)


def test_the_stop_string_complete_first_wins() -> None:
    assert run([b"xabcd"], ("abcd", "bc")) == ("xa", True)
    assert run([b"xabc"], ("abc", "bc")) == ("x", True)


def test_nothing_follows_a_stop() -> None:
    assembler = TextAssembler(("!",))
    assert assembler.push(b"a!") == "a"
    assert assembler.push(b"more") == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        TextAssembler(("",))


@given(st.text(alphabet="abé👍\n", max_size=30), st.lists(st.integers(0, 1000), max_size=20))
def test_any_split_gives_the_same_text(text: str, cuts: list[int]) -> None:
    assert run(split(text.encode(), cuts)) == (text, False)


@given(
    st.text(alphabet="abé", max_size=30),
    st.lists(st.text(alphabet="abé", min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.integers(0, 1000), max_size=20),
)
def test_any_split_stops_at_the_same_character(text: str, stop: list[str], cuts: list[int]) -> None:
    ends = [(text.find(mark) + len(mark), text.find(mark)) for mark in stop if mark in text]
    expected = (text[: min(ends)[1]], True) if ends else (text, False)
    assert run(split(text.encode(), cuts), tuple(stop)) == expected
