"""What of a chat may be sent to an upstream, and which chats stay."""

from __future__ import annotations

import json
from typing import Any

import pytest

from node.generation import Asked
from node.server import messages, tools
from node.server.fields import decode
from node.server.openai import ChatBody
from node.server.outward import asked_of

MESSAGES: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief.", "name": "boss"},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    {
        "role": "assistant",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "2"},
]
TOOL = {"type": "function", "function": {"name": "f"}}


def asked(**body: Any) -> Asked | None:
    form = decode(json.dumps({"messages": MESSAGES, **body}).encode(), ChatBody)
    offered = tools.definitions(form.tools or ())
    return asked_of(form, messages.normalise(form.messages), offered)


def sent(**body: Any) -> dict[str, Any]:
    found = asked(**body)
    assert found is not None
    assert found.cloud == ""
    return json.loads(found.body)  # type: ignore[no-any-return]


def test_only_what_shapes_the_answer_leaves() -> None:
    body = sent(
        model="here", user="ann", safety_identifier="x", stream=True, seed=3, temperature=0.5, max_tokens=9, stop="END"
    )
    assert set(body) == {"messages", "seed", "temperature", "max_tokens", "stop"}
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert body["messages"][2]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert "ann" not in json.dumps(body)


def test_the_newer_name_of_the_length_wins() -> None:
    assert sent(max_tokens=9, max_completion_tokens=7)["max_tokens"] == 7
    assert "max_tokens" not in sent()


def test_tools_go_with_their_choice() -> None:
    body = sent(tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    assert body["tools"][0]["function"]["name"] == "f"
    assert (body["tool_choice"], body["parallel_tool_calls"]) == ("required", False)
    assert "tool_choice" not in sent(tools=[], tool_choice="none")


STAYS: list[dict[str, Any]] = [
    {"logprobs": True},
    {"logit_bias": {"5": 1}},
    {"ignore_eos": True},
    {"top_k": 5},
    {"min_p": 0.1},
    {"repeat_penalty": 1.1},
    {"repetition_penalty": 1.1},
    {"response_format": {"type": "regex", "pattern": "a"}},
    {"response_format": {"type": "lark_grammar", "grammar": "x"}},
    {"continue_final_message": True},
]


@pytest.mark.parametrize("body", STAYS)
def test_what_only_this_model_can_do_stays(body: dict[str, Any]) -> None:
    assert asked(**body) is None


@pytest.mark.parametrize(
    "form", [{"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {}}]
)
def test_forms_that_openai_has_go_along(form: dict[str, Any]) -> None:
    assert sent(response_format=form)["response_format"] == form


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"to": "m\\u00fcller\\u0040example.com"}', '{"to":"müller@example.com"}'),
        ('{"a": 1.0}', '{"a": 1.0}'),
        ("no \\u0041 JSON", "no \\u0041 JSON"),
    ],
)
def test_arguments_hide_nothing_in_escapes(arguments: str, expected: str) -> None:
    """A pattern that is to be taken out would not be found, or half of the escape would be left."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    body = sent(messages=[{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}])
    assert body["messages"][1]["tool_calls"][0]["function"]["arguments"] == expected
