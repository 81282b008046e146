import pytest
from hypothesis import given
from hypothesis import strategies as st

from node import errors
from node.chunks import BrokenStream, Chunk, Cursor, SaidError, SseDecoder, chunk_of, error_from, printable

# name, bytes, the events in them
CASES = [
    ("one event", b"data: a\n\n", ["a"]),
    ("two events", b"data: a\n\ndata: b\n\n", ["a", "b"]),
    ("no space", b"data:a\n\n", ["a"]),
    ("only one space goes", b"data:  a\n\n", [" a"]),
    ("two data lines", b"data: a\ndata: b\n\n", ["a\nb"]),
    ("empty data", b"data:\n\n", [""]),
    ("data without colon", b"data\n\n", [""]),
    ("keepalive with one newline", b": ka\n: ka\ndata: a\n\n", ["a"]),
    ("keepalive inside an event", b"data: a\n: ka\n\n", ["a"]),
    ("keepalive with a blank line", b": ka\n\ndata: a\n\n", ["a"]),
    ("other fields", b"id: 1\nevent: x\nretry: 5\ndatabase: no\ndata: a\n\n", ["a"]),
    ("lone retry block", b"retry: 5\n\ndata: a\n\n", ["a"]),
    ("CRLF", b"data: a\r\n\r\n: ka\r\ndata: b\r\n\r\n", ["a", "b"]),
    ("CR", b"data: a\r\rdata: b\r\r", ["a", "b"]),
    ("mixed ends", b"data: a\r\n\ndata: b\n\r\n", ["a", "b"]),
    ("UTF-8", "data: zażółć 🎈\n\n".encode(), ["zażółć 🎈"]),
    ("line separator is text", "data: a\u2028b\x85c\n\n".encode(), ["a\u2028b\x85c"]),
    ("byte order mark", b"\xef\xbb\xbfdata: a\n\n", ["a"]),
    ("unfinished event", b"data: a\n\ndata: b\n", ["a"]),
    ("unfinished line", b"data: a\n\ndata: b", ["a"]),
    ("nothing", b"", []),
]


@pytest.mark.parametrize(("data", "events"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
class TestSseDecoder:
    def test_in_one_piece(self, data: bytes, events: list[str]) -> None:
        assert SseDecoder().feed(data) == events

    def test_byte_by_byte(self, data: bytes, events: list[str]) -> None:
        decoder = SseDecoder()
        assert [event for byte in data for event in decoder.feed(bytes([byte]))] == events

    def test_cut_in_two_anywhere(self, data: bytes, events: list[str]) -> None:
        for cut in range(len(data) + 1):
            decoder = SseDecoder()
            assert decoder.feed(data[:cut]) + decoder.feed(b"") + decoder.feed(data[cut:]) == events

    def test_more_follows(self, data: bytes, events: list[str]) -> None:
        decoder = SseDecoder()
        seen = decoder.feed(data) + decoder.feed(b"\n\ndata: last\n\n")
        assert seen[: len(events)] == events
        assert seen[-1] == "last"


@given(
    texts=st.lists(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\n"))),
    end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    sizes=st.lists(st.integers(1, 9), min_size=1),
)
def test_any_text_comes_through_any_cut(texts: list[str], end: bytes, sizes: list[int]) -> None:
    stream = b"".join(b"data: " + text.encode() + end + end for text in texts)
    decoder, seen, at = SseDecoder(), list[str](), 0
    while at < len(stream):
        size = sizes[at % len(sizes)]
        seen += decoder.feed(stream[at : at + size])
        at += size
    assert seen == texts


@given(pieces=st.lists(st.binary(max_size=40)))
def test_no_bytes_crash_the_decoder(pieces: list[bytes]) -> None:
    decoder = SseDecoder(limit=64)
    try:
        for piece in pieces:
            decoder.feed(piece)
    except BrokenStream:
        pass


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([b"data: " + b"x" * 100 + b"\n\n"], id="a long line at once"),
        pytest.param([b"x"] * 200, id="a line without end"),
        pytest.param([b"data: x\n"] * 200, id="an event without end"),
        pytest.param([b"data\n"] * 200, id="an event of empty lines without end"),
        pytest.param([b":" + b"x" * 100 + b"\n"], id="a long comment"),
    ],
)
def test_the_limit_holds(pieces: list[bytes]) -> None:
    decoder = SseDecoder(limit=64)
    with pytest.raises(BrokenStream, match="64 bytes"):
        list(map(decoder.feed, pieces))


def test_the_limit_is_per_event() -> None:
    decoder = SseDecoder(limit=64)
    assert len(decoder.feed((b"data: " + b"x" * 50 + b"\n\n" + b":" + b"y" * 50 + b"\n") * 100)) == 100


def test_invalid_utf8_is_an_error() -> None:
    with pytest.raises(BrokenStream, match="UTF-8"):
        SseDecoder().feed(b"data: \xff\n\n")


@pytest.mark.parametrize("event", ["", "{", "[]", "null", '{"choices":3}', '{"choices":[{"delta":{"content":1}}]}'])
def test_an_event_that_is_no_chunk_is_broken(event: str) -> None:
    with pytest.raises(BrokenStream):
        chunk_of(event)


def test_a_chunk_says_how_far_the_answer_has_come() -> None:
    assert chunk_of('{"choices":[],"outpost":{"seq":7,"more":1}}') == Chunk(outpost=Cursor(7))
    assert chunk_of('{"choices":[],"outpost":{"seq":7,"rewind":true}}').outpost == Cursor(7, rewind=True)
    assert chunk_of('{"choices":[]}').outpost is None


@pytest.mark.parametrize(
    ("status", "said", "kind"),
    [
        (
            400,
            SaidError("m", "invalid_request_error", "messages", "context_length_exceeded"),
            errors.ContextLengthExceeded,
        ),
        (400, SaidError("m", "invalid_request_error", "n", "unsupported_value"), errors.Unsupported),
        (400, SaidError("m", "invalid_request_error"), errors.InvalidRequest),
        (422, SaidError("m"), errors.InvalidRequest),
        (401, SaidError("m", "authentication_error"), errors.Unauthorized),
        (403, SaidError("m"), errors.Unauthorized),
        (404, SaidError("m", code="model_not_found"), errors.ModelNotFound),
        (404, SaidError("m"), errors.NotFound),
        (403, SaidError("m", "permission_error", None, "forbidden"), errors.Forbidden),
        (409, SaidError("m"), errors.Conflict),
        (410, SaidError("m", code="evicted"), errors.Gone),
        (413, SaidError("m"), errors.TooLarge),
        (429, SaidError("m", "rate_limit_error", None, "queue_full"), errors.Overloaded),
        (503, SaidError("m"), errors.Unavailable),
        (500, SaidError("m", "server_error", None, 7), errors.EngineFailed),
        (500, SaidError("m", "rate_limit_error"), errors.Overloaded),
        (500, SaidError(), errors.EngineFailed),
    ],
)
def test_errors_find_their_class(status: int, said: SaidError, kind: type[errors.NodeError]) -> None:
    error = error_from(status, said, retry_after=4)
    assert type(error) is kind
    assert error.message == (said.message or "The node answered 500.")
    assert (error.param, error.retry_after) == (said.param, 4)
    assert "4 seconds" in (error.hint or "")


def test_what_a_server_says_cannot_command_a_terminal() -> None:
    assert error_from(500, SaidError("a\x1b[2Jb\nc\x9b")).message == "a [2Jb c "
    assert printable("żó 🎈") == "żó 🎈"
