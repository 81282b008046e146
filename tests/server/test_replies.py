"""Replies, byte for byte."""

import json
from typing import Any

from node.errors import ContextLengthExceeded, InvalidRequest
from node.generation import Finished, Logprob, Token
from node.server.calls import ToolCallParser
from node.server.replies import ChatReply, TextReply, error_body
from node.server.wsproto import Part, part
from node.stream.session import Piece
from tests.server.wire import events

END = Finished("stop", 7, 2)
HEAD = b'data: {"id":"i","created":9,"model":"m","object":"chat.completion.chunk","choices":['


def reply(**more: Any) -> ChatReply:
    return ChatReply("i", 9, "m", **more)


def piece(text: str, *tokens: Token) -> Piece:
    return Piece(text, tokens or (Token(1, text.encode()),), 1)


def test_chat_chunks_byte_for_byte() -> None:
    chat = reply()
    open_ = b'"logprobs":null,"finish_reason":null}],'
    role = b'{"index":0,"delta":{"role":"assistant","content":""},' + open_ + b'"outpost":{"seq":-1}}\n\n'
    text = b'{"index":0,"delta":{"content":"a\\"\\n\xe2\x98\x83"},' + open_ + b'"outpost":{"seq":0}}\n\n'
    last = b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"outpost":{"seq":4}}\n\ndata: [DONE]\n\n'
    assert chat.opening() == HEAD + role
    assert chat.piece(piece('a"\n☃')) == HEAD + text
    assert chat.closing(END, 0, 4) == HEAD + last


def test_where_a_reply_is_plain_its_events_say_the_text_and_nothing_else() -> None:
    for kind in (reply(), TextReply("i", 9, "m")):
        assert part(kind.piece(piece('a"\n☃')), 3) == Part({kind.plain: 'a"\n☃'})
        assert part(kind.piece(piece("")), 3) == Part({})

    def spelled(_: int) -> bytes:
        return b"7"

    for kind in (reply(parser=parser()), reply(token_bytes=spelled), TextReply("i", 9, "m", token_bytes=spelled)):
        assert not kind.plain


def test_the_cursor_is_the_number_of_the_last_entry_in_a_chunk() -> None:
    pieces = Piece("ab", (Token(1, b"a"), Token(2, b"b")), 7)
    for kind in (reply(), reply(parser=parser()), TextReply("i", 9, "m"), reply(include_usage=True)):
        chunks = [chunk for chunk in events(kind.piece(pieces) + kind.closing(END, 0, 9)) if chunk != "[DONE]"]
        assert [chunk["outpost"]["seq"] for chunk in chunks] == [6] + [9] * (len(chunks) - 1)
    (rewind,) = events(reply().rewind(5))
    assert rewind["choices"] == []
    assert rewind["outpost"] == {"seq": 5, "rewind": True}


def test_nothing_to_say_is_no_chunk() -> None:
    assert reply().piece(piece("")) == b""
    assert TextReply("i", 9, "m").piece(piece("")) == b""


def test_usage_comes_last_and_only_when_asked_for() -> None:
    *chunks, usage, done = events(
        reply(include_usage=True).piece(piece("x")) + reply(include_usage=True).closing(END, 3, 4)
    )
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    assert all(chunk["usage"] is None for chunk in chunks)
    assert b"usage" not in reply().closing(END, 3, 4)


def test_a_whole_chat() -> None:
    body = json.loads(reply().whole("hello", (), Finished("length", 1, 2), 0))
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
        }
    ]


def parser() -> ToolCallParser:
    return ToolCallParser(lambda: "call_x")


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def test_calls_stream_as_deltas() -> None:
    chat = reply(parser=parser())
    first, second, last, _ = events(chat.piece(piece(CALL)) + chat.closing(END, 0, 4))
    assert first["choices"][0]["delta"] == {
        "tool_calls": [{"index": 0, "id": "call_x", "type": "function", "function": {"name": "f", "arguments": ""}}]
    }
    assert second["choices"][0]["delta"] == {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]}
    assert last["choices"][0]["finish_reason"] == "tool_calls"


def test_whole_calls() -> None:
    (choice,) = json.loads(reply(parser=parser()).whole(CALL, (), END, 0))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call == {"id": "call_x", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def test_a_call_that_broke_off_does_not_pass_for_one() -> None:
    (choice,) = json.loads(reply(parser=parser()).whole(CALL[:45], (), Finished("length", 1, 1), 0))["choices"]
    assert choice["finish_reason"] == "length"
    (choice,) = json.loads(reply(parser=parser()).whole("no call", (), END, 0))["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == "no call"


TOKEN = Token(1, b"\xe2", Logprob(-0.5, ((65, -0.5), (66, float("-inf")))))


def test_chat_logprobs_ride_on_the_piece() -> None:
    chat = reply(token_bytes=lambda id: bytes([id]))
    (chunk,) = events(chat.piece(piece("", TOKEN)))
    assert chunk["choices"][0]["delta"] == {"content": ""}
    assert chunk["choices"][0]["logprobs"]["content"] == [
        {
            "token": "�",
            "logprob": -0.5,
            "bytes": [226],
            "top_logprobs": [
                {"token": "A", "logprob": -0.5, "bytes": [65]},
                {"token": "B", "logprob": -9999.0, "bytes": [66]},
            ],
        }
    ]


def test_text_logprobs_count_offsets_across_chunks() -> None:
    text = TextReply("i", 9, "m", token_bytes=lambda id: bytes([id]))
    tokens = [Token(1, b"ab", Logprob(-1, ())), Token(2, b"c", Logprob(-2, ((67, -2),)))]
    first, second = events(text.piece(piece("ab", tokens[0])) + text.piece(piece("c", tokens[1])))
    assert first["choices"][0]["logprobs"]["text_offset"] == [0]
    assert second["choices"][0]["logprobs"] == {
        "tokens": ["c"],
        "token_logprobs": [-2],
        "top_logprobs": [{"C": -2}],
        "text_offset": [2],
    }


def test_a_text_completion() -> None:
    text = TextReply("i", 9, "m")
    assert text.opening() == b""
    chunk, last, _ = events(text.piece(piece("x")) + text.closing(END, 0, 4))
    assert chunk["object"] == "text_completion"
    assert chunk["choices"] == [{"index": 0, "text": "x", "logprobs": None, "finish_reason": None}]
    assert last["choices"][0]["finish_reason"] == "stop"
    whole = json.loads(text.whole("x", (), END, 0))
    assert whole["choices"][0]["text"] == "x"
    assert whole["usage"]["total_tokens"] == 9


def test_error_bodies() -> None:
    error = json.loads(error_body(ContextLengthExceeded(10, 20, 25)))["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "context_length_exceeded"
    assert "10" in error["message"]
    assert "25" in error["message"]
    assert json.loads(error_body(InvalidRequest("No.", hint="Do."))) == {
        "error": {"message": "No. Do.", "type": "invalid_request_error", "param": None, "code": None}
    }


def test_who_answered_is_told_at_the_end_where_it_was_somebody_else() -> None:
    moved = Finished("stop", 7, 2, ("peer/a", "local"))
    for kind in (reply(), TextReply("i", 9, "m")):
        last = events(kind.closing(moved, 0, 4))[-2]
        assert last["outpost"] == {"seq": 4, "served_by": ["peer/a", "local"]}
        assert last["choices"][0]["finish_reason"] == "stop"
    whole = json.loads(reply().whole("x", (), moved, 0))
    assert whole["usage"]["outpost"] == {"served_by": ["peer/a", "local"]}
    assert "outpost" not in json.loads(reply().whole("x", (), Finished("stop", 7, 2, ("local",)), 0))["usage"]
    usage = events(reply(include_usage=True).closing(moved, 0, 4))[-2]["usage"]
    assert usage["outpost"] == {"served_by": ["peer/a", "local"]}
    both = reply(answer_cached=True).usage(moved, 0)["outpost"]
    assert both == {"answer_cached": True, "served_by": ("peer/a", "local")}
