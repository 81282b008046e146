"""Tools: their definitions, and the grammar that makes a call always parse.

Every model is asked for the same form, whatever it was trained on, because the grammar forces it:

    <tool_call>
    {"name": NAME, "arguments": OBJECT}
    </tool_call>

`<tool_call>` is plain text here: whether it is one token or many in a vocabulary makes no difference. With
`tool_choice` "auto" text is free until that mark; after the first call only further calls may follow, so that a small
model does not ramble on. `calls.py` reads the same form back while it is being generated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from node.errors import InvalidRequest, Unsupported
from node.generation import Constraint
from node.server.fields import convert, named, schema_text

MAX_TOOLS = 128
OPEN, HEAD, MIDDLE, CLOSE = "<tool_call>", '\n{"name": "', '", "arguments": ', "}\n</tool_call>"


class Function(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    function: Function


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    function: dict[str, Any] | None = None


def definitions(raw: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """The tools as plain dicts in OpenAI's form; `parameters` is always an object schema."""
    if len(raw) > MAX_TOOLS:
        raise InvalidRequest(f"`tools` takes at most {MAX_TOOLS} tools.", param="tools")
    tools = tuple(_definition(value, f"tools[{index}]") for index, value in enumerate(raw))
    names = [name_of(tool) for tool in tools]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise InvalidRequest(f"Two of the `tools` are called {double}.", param="tools")
    return tools


def name_of(tool: Mapping[str, Any]) -> str:
    name: str = tool["function"]["name"]
    return name


def constraint_for(
    tools: Sequence[Mapping[str, Any]], tool_choice: str | Mapping[str, Any] | None, parallel: bool
) -> Constraint | None:
    """The grammar of the answer; None where no call is wanted. `tools` come from `definitions`."""
    wanted, forced = _wanted(tools, tool_choice)
    if isinstance(tool_choice, Mapping):
        parallel = False  # who names one function wants one call of it
    return Constraint("lark", _grammar(wanted, forced, parallel)) if wanted else None


def _wanted(
    tools: Sequence[Mapping[str, Any]], choice: str | Mapping[str, Any] | None
) -> tuple[Sequence[Mapping[str, Any]], bool]:
    """The tools that may be called, and whether one must be."""
    if choice == "none" or (choice in (None, "auto") and not tools):
        return (), False
    if not tools:
        raise InvalidRequest("`tool_choice` needs `tools`.", param="tool_choice")
    if choice in (None, "auto"):
        return tools, False
    if choice == "required":
        return tools, True
    if isinstance(choice, str):
        raise InvalidRequest("`tool_choice` must be none, auto, required or name a function.", param="tool_choice")
    name = _chosen(choice)
    if not (named_tools := [tool for tool in tools if name_of(tool) == name]):
        raise InvalidRequest("`tool_choice` names a function that is not in `tools`.", param="tool_choice")
    return named_tools, True


def _chosen(choice: Any) -> str:
    form = convert(choice, Choice, "tool_choice")
    if form.type != "function":
        raise Unsupported("`tool_choice.type` must be function.", param="tool_choice.type")
    return named((form.function or {}).get("name"), "tool_choice.function.name")


def _definition(value: Any, where: str) -> dict[str, Any]:
    tool = convert(value, Tool, where)
    if tool.type != "function":
        raise Unsupported(f"`{where}.type` must be function.", param=f"{where}.type")
    function = tool.function
    plain: dict[str, Any] = {"name": named(function.name, f"{where}.function.name")}
    if function.description is not None:
        plain["description"] = function.description
    plain["parameters"] = _parameters(function.parameters, f"{where}.function.parameters")
    return {"type": "function", "function": plain}


def _parameters(schema: dict[str, Any] | None, where: str) -> dict[str, Any]:
    if not schema:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if schema.get("type", "object") != "object":
        raise InvalidRequest(f"`{where}` must be a schema of type object.", param=where)
    schema_text(schema, where)  # so that its size and depth are refused under this name
    return {"type": "object", **schema}


def _grammar(tools: Sequence[Mapping[str, Any]], forced: bool, parallel: bool) -> str:
    more = f"({_quoted(chr(10) + OPEN)} call)*" if parallel else ""
    start = f"start: {_quoted(OPEN)} call {more}" if forced else f"start: TEXT | opening call {more}"
    lines = ["%llguidance {}", start, "call: " + " | ".join(f"call_{index}" for index in range(len(tools)))]
    for index, tool in enumerate(tools):
        head = _quoted(HEAD + name_of(tool) + MIDDLE)
        lines.append(f"call_{index}: {head} arguments_{index} {_quoted(CLOSE)}")
        lines.append(f"arguments_{index}: %json {schema_text(tool['function']['parameters'], 'tools')}")
    if not forced:
        lines += [f"opening[lazy]: TEXT {_quoted(OPEN)}", r"TEXT: /(.|\n)*/"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text)
