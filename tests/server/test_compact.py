"""What a stream looks like at each level, and what a reader hears when the node changes it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from node.generation import Finished
from node.server.calls import ToolCallParser
from node.server.compact import Levelled
from node.server.level import HEADER, Conditions, Levels
from node.server.replies import ChatReply, TextReply
from node.stream.session import Piece
from tests.server.wire import chat, events, post
from tests.support.service import scripted, serving

PATH = "/v1/chat/completions"
END = Finished("stop", 5, 2)


class Weather:
    def __init__(self) -> None:
        self.rtt_s, self.now = 0.05, 0.0

    def look(self) -> tuple[Conditions, float]:
        return Conditions(self.rtt_s, 1 << 30), self.now


def levelled(asked: int, weather: Weather | None = None, inner: Any = None) -> Levelled:
    inner = inner or ChatReply("id", 1, "m", include_usage=True)
    return Levelled(inner, Levels(asked), "markdown", (weather or Weather()).look)


def test_everything_is_unchanged() -> None:
    plain, same = ChatReply("id", 1, "m", include_usage=True), levelled(3)
    piece = Piece("Hi", (), 1)
    assert same.opening() == plain.opening()
    assert same.piece(piece) == plain.piece(piece)
    assert same.closing(END, 0, 1) == plain.closing(END, 0, 1)
    assert same.rewind(3) == plain.rewind(3)
    assert same.whole("Hi", (), END, 0) == plain.whole("Hi", (), END, 0)


def test_compact_metadata() -> None:
    reply = levelled(2)
    told = events(reply.opening() + reply.piece(Piece("Hi", (), 2)) + reply.closing(END, 1, 1))
    assert told == [
        {"outpost": {"seq": -1, "level": 2, "render": "markdown"}, "choices": [{"delta": {"role": "assistant"}}]},
        {"outpost": {"seq": 1}, "choices": [{"delta": {"content": "Hi"}}]},
        {
            "outpost": {"seq": 1, "severity": "info"},
            "choices": [{"delta": {}, "finish_reason": "stop"}],
            "usage": {
                "prompt_tokens": 5,
                "completion_tokens": 2,
                "total_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 1},
            },
        },
        "[DONE]",
    ]


def test_an_answer_that_was_cut_short_is_a_warning() -> None:
    assert b'"severity":"warning"' in levelled(2).closing(Finished("length", 5, 2), 0, 1)


def test_plain_text() -> None:
    reply = levelled(1)
    assert reply.opening() == b""
    assert reply.piece(Piece('say "hi"\n', (), 1)) == b'data: "say \\"hi\\"\\n"\n\n'
    assert reply.piece(Piece("", (), 2)) == b""
    assert reply.closing(END, 0, 1) == b"data: [DONE]\n\n"


@pytest.mark.parametrize("asked", [1, 2])
def test_a_rewind_is_told_at_every_level(asked: int) -> None:
    assert events(levelled(asked).rewind(4)) == [{"outpost": {"seq": 4, "rewind": True}, "choices": []}]


def test_the_node_says_when_it_changes_the_level() -> None:
    weather = Weather()
    reply = levelled(3, weather)
    weather.rtt_s = 1.0
    notice, text = events(reply.piece(Piece("a", (), 1)))
    assert notice == {"outpost": {"level": 2, "reason": "slow link", "severity": "warning"}, "choices": []}
    assert text == {"outpost": {"seq": 0}, "choices": [{"delta": {"content": "a"}}]}
    weather.now = 5
    assert [type(event) for event in events(reply.piece(Piece("b", (), 2)))] == [dict, str]
    weather.rtt_s = 0.01
    reply.piece(Piece("c", (), 3))
    weather.now = 20
    notice, text = events(reply.piece(Piece("d", (), 4)))
    assert notice["outpost"] == {"level": 2, "reason": "well again", "severity": "info"}
    weather.now = 40
    assert events(reply.piece(Piece("e", (), 5)))[1]["object"] == "chat.completion.chunk"


def test_tool_calls_are_never_lowered() -> None:
    weather = Weather()
    weather.rtt_s = 5.0
    reply = levelled(3, weather, ChatReply("id", 1, "m", parser=ToolCallParser(lambda: "call_1")))
    assert events(reply.piece(Piece("a", (), 1)))[0]["object"] == "chat.completion.chunk"


def test_text_completions_have_levels_too() -> None:
    reply = levelled(2, inner=TextReply("id", 1, "m"))
    assert events(reply.piece(Piece("a", (), 1))) == [{"outpost": {"seq": 0}, "choices": [{"delta": {"content": "a"}}]}]


@pytest.mark.parametrize(("level", "texts"), [("1", ["Hello", " wor", "ld", "."]), ("2", None)])
async def test_over_http(level: str, texts: list[str] | None) -> None:
    service, _ = scripted("Hello", " wor", "ld", ".")
    async with serving(service) as url:
        status, body, _ = await post(url + PATH, chat(stream=True), {HEADER: level})
        assert status == 200
        told = events(body)
        assert told[-1] == "[DONE]"
        if texts:
            assert told[:-1] == texts
        else:
            content = "".join(one["choices"][0]["delta"].get("content", "") for one in told[:-1])
            assert content == "Hello world."
            assert told[-2]["usage"]["completion_tokens"] == 4


async def test_a_schema_asks_to_be_shown_as_json() -> None:
    service, _ = scripted("{}")
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    async with serving(service) as url:
        _, body, _ = await post(url + PATH, chat(stream=True, response_format=schema), {HEADER: "2"})
        assert events(body)[0]["outpost"]["render"] == "json"


@pytest.mark.parametrize(
    ("level", "more", "complaint"),
    [("9", {}, "1, 2 or 3"), ("2", {"logprobs": True}, "level 3")],
)
async def test_what_cannot_be_is_refused_before_the_stream(level: str, more: dict[str, Any], complaint: str) -> None:
    service, _ = scripted("a")
    async with serving(service) as url:
        status, body, _ = await post(url + PATH, chat(stream=True, **more), {HEADER: level})
        assert status == 400
        error = json.loads(body)["error"]
        assert complaint in error["message"]
        assert error["param"] == HEADER
