"""What a chat asks, for an upstream that speaks OpenAI's API and knows no token ids. Pure.

Only what shapes the answer leaves, never who asks. What an upstream cannot be trusted to do as this node does it
(logprobs and biases over this vocabulary, grammars, this node's own sampling fields) makes the whole request one that
stays with nodes of the same model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from node.generation import Asked
from node.server.openai import ChatBody

_SAME = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop", "response_format")
_OWN = ("logprobs", "logit_bias", "ignore_eos", "top_k", "min_p", "repeat_penalty", "repetition_penalty")
_FORMS = ("text", "json_object", "json_schema")


def asked_of(form: ChatBody, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> Asked | None:
    """The body to send, without model, stream and what names the caller; None where it has to stay."""
    if any(getattr(form, name) for name in _OWN) or form.continue_final_message:
        return None
    if form.response_format is not None and form.response_format.get("type") not in _FORMS:
        return None
    body: dict[str, Any] = {"messages": [_nameless(message) for message in messages]}
    body |= {name: value for name in _SAME if (value := getattr(form, name)) is not None}
    most = form.max_tokens if form.max_completion_tokens is None else form.max_completion_tokens
    if most is not None:
        body["max_tokens"] = most
    if tools:
        body["tools"] = tools
        body |= {
            name: value for name in ("tool_choice", "parallel_tool_calls") if (value := getattr(form, name)) is not None
        }
    return Asked(msgspec.json.encode(body))


def _nameless(message: dict[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in message.items() if key != "name"}
    if calls := plain.get("tool_calls"):
        plain["tool_calls"] = [{**call, "function": _text_arguments(call["function"])} for call in calls]
    return plain


def _text_arguments(function: dict[str, Any]) -> dict[str, Any]:
    """Arguments that came as an object go out as OpenAI has them; what they hide in escapes is written out."""
    arguments = function["arguments"]
    if isinstance(arguments, str):
        if "\\u" not in arguments:
            return function
        try:
            arguments = msgspec.json.decode(arguments)
        except msgspec.DecodeError:
            return function
    return {**function, "arguments": msgspec.json.encode(arguments).decode()}
