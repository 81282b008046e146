"""A chat's messages: OpenAI's many forms brought to one, with the place of every fault named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from node.errors import InvalidRequest, Unsupported
from node.server.fields import convert, named, nested_deeper

MAX_MESSAGES = 4096
MAX_CALLS = 128
MAX_ARGUMENT_DEPTH = 64
ROLES = ("system", "developer", "user", "assistant", "tool")


class Part(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    text: str | None = None


class Function(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arguments: str | dict[str, Any] = ""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    function: Function
    type: Literal["function"] = "function"


class Message(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    content: str | list[Any] | None = None
    name: str | None = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None
    function_call: Any = None
    audio: Any = None


def normalise(raw: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """The messages as plain dicts: contents are strings, `developer` is `system`, calls keep their arguments."""
    if not raw:
        raise InvalidRequest("`messages` must hold at least one message.", param="messages")
    if len(raw) > MAX_MESSAGES:
        raise InvalidRequest(f"`messages` takes at most {MAX_MESSAGES} messages.", param="messages")
    return tuple(_message(value, f"messages[{index}]") for index, value in enumerate(raw))


def _message(value: Any, where: str) -> dict[str, Any]:
    message = convert(value, Message, where)
    if message.role not in ROLES:
        raise InvalidRequest(f"`{where}.role` must be one of: {', '.join(ROLES)}.", param=f"{where}.role")
    for name in ("function_call", "audio"):
        if getattr(message, name) is not None:
            raise Unsupported(f"This node cannot use `{where}.{name}`.", param=f"{where}.{name}")
    plain: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _content(message, where),
    }
    if message.name is not None:
        plain["name"] = message.name
    if message.role == "tool":
        if not message.tool_call_id:
            raise InvalidRequest(
                f"`{where}.tool_call_id` must say which call this answers.", param=f"{where}.tool_call_id"
            )
        plain["tool_call_id"] = message.tool_call_id
    if calls := _calls(message, where):
        plain["tool_calls"] = calls
    return plain


def _content(message: Message, where: str) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    if not content:
        if message.role == "assistant" and message.tool_calls:
            return ""
        raise InvalidRequest(f"`{where}.content` is missing.", param=f"{where}.content")
    return "\n".join(_part(part, f"{where}.content[{index}]") for index, part in enumerate(content))


def _part(value: Any, where: str) -> str:
    part = convert(value, Part, where)
    if part.type != "text":
        raise Unsupported(f"`{where}` is not of type text, and this model reads nothing else.", param=where)
    if part.text is None:
        raise InvalidRequest(f"`{where}.text` is missing.", param=f"{where}.text")
    return part.text


def _calls(message: Message, where: str) -> list[dict[str, Any]]:
    raw = message.tool_calls or []
    if raw and message.role != "assistant":
        raise InvalidRequest(f"Only an assistant's message has `{where}.tool_calls`.", param=f"{where}.tool_calls")
    if len(raw) > MAX_CALLS:
        raise InvalidRequest(f"`{where}.tool_calls` takes at most {MAX_CALLS} calls.", param=f"{where}.tool_calls")
    return [_call(value, f"{where}.tool_calls[{index}]") for index, value in enumerate(raw)]


def _call(value: Any, where: str) -> dict[str, Any]:
    call = convert(value, Call, where)
    named(call.function.name, f"{where}.function.name")
    if nested_deeper(call.function.arguments, MAX_ARGUMENT_DEPTH):
        param = f"{where}.function.arguments"
        raise InvalidRequest(f"`{param}` nests more than {MAX_ARGUMENT_DEPTH} levels.", param=param)
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.function.name, "arguments": call.function.arguments},
    }
