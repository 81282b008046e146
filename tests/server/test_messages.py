"""Messages: many forms become one, and every fault is named by its place."""

from typing import Any

import pytest

from node.errors import InvalidRequest
from node.server.messages import MAX_MESSAGES, normalise

CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def test_one_form_for_all() -> None:
    assert normalise(
        [
            {"role": "developer", "content": "be short"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ann"},
            {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "audio": None},
            {"role": "tool", "content": "7", "tool_call_id": "call_1"},
        ]
    ) == (
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "a\nb", "name": "Ann"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "7", "tool_call_id": "call_1"},
    )


def test_arguments_may_be_an_object() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}
    (message,) = normalise([{"role": "assistant", "content": "", "tool_calls": [call]}])
    assert message["tool_calls"][0]["function"]["arguments"] == {"a": 1}


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"a": value}
    return value


IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "user", "content": "x"}] * (MAX_MESSAGES + 1), "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": "function", "content": "x", "name": "f"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "assistant", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": "x"}, {"role": "user", "content": [IMAGE]}], "messages[1].content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": "x"}, IMAGE]}], "messages[0].content[1]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
        ([{"role": "user", "content": "x", "tool_calls": [CALL]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [CALL] * 129}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{"id": "c"}]}], "messages[0].tool_calls[0].function"),
        (
            [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": ""}}]}],
            "messages[0].tool_calls[0].function.name",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": nested(70)}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        ([{"role": "assistant", "content": "x", "function_call": {"name": "f"}}], "messages[0].function_call"),
        ([{"role": "assistant", "content": "x", "audio": {"id": "a"}}], "messages[0].audio"),
    ],
)
def test_a_fault_is_named_by_its_place(messages: list[Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        normalise(messages)
    assert caught.value.param == param
    assert caught.value.status == 400
