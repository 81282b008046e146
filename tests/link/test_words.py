"""Text and messages in chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import LinkError
from node.link.sender import MAX_CHUNK
from node.link.words import BEGUN, MAX_MESSAGE, MESSAGE, Words, cut, pieces


@given(st.binary(max_size=3000))
def test_messages_of_any_length(message: bytes) -> None:
    words = Words()
    *begun, last = pieces(message)
    assert [words.take(chunk) for chunk in begun] == [None] * len(begun)
    assert words.take(last) == message
    assert all(len(chunk) <= MAX_CHUNK for chunk in (*begun, last))


@given(st.text(max_size=50))
def test_text_is_text(text: str) -> None:
    assert Words().take(text.encode()) == text


@given(st.binary(max_size=3000))
def test_requests_are_cut(request: bytes) -> None:
    chunks = list(cut(request))
    assert b"".join(chunks) == request
    assert all(0 < len(chunk) <= MAX_CHUNK for chunk in chunks)


@pytest.mark.parametrize("chunks", [[b"\xff"], [b"\xc3"], [bytes((BEGUN,)) + b"{", b"text"]])
def test_what_is_neither_is_a_link_error(chunks: list[bytes]) -> None:
    words = Words()
    *before, last = chunks
    for chunk in before:
        words.take(chunk)
    with pytest.raises(LinkError):
        words.take(last)


def test_a_message_is_bounded() -> None:
    words = Words()
    for _ in range(MAX_MESSAGE // 1000):
        words.take(bytes((BEGUN,)) + b"x" * 1000)
    with pytest.raises(LinkError, match=str(MAX_MESSAGE)):
        words.take(bytes((BEGUN,)) + b"x" * 1000)
    assert Words().take(bytes((MESSAGE,))) == b""
