"""Conversations to token ids, in the model's own chat template (Jinja, sandboxed, from the model file).

Two rules hold for every template:

- A marker such as `<|im_end|>` inside somebody's words stays words. Before rendering, every marker found in a message
  is split by a noncharacter; the rendered text is cut there, and the parts are tokenized one by one.
- Tools are always called in one format, `<tool_call>\\n{"name": …, "arguments": …}\\n</tool_call>`. A template that
  knows this format renders tools and calls itself; for any other, they are written into plain messages here.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from node.engine.tokens import Tokens
from node.errors import InvalidRequest, ModelFileError, Unsupported

CALL_MARKER = "<tool_call>"
_BORDER = "\ufdd0"  # a noncharacter: never in text that people exchange, and removed from theirs
_MAX_TEMPLATE = 256 << 10  # characters of a template
_MAX_RENDERED = 64 << 20  # characters of a rendered conversation

_TOOLS_TEXT = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""

Message = Mapping[str, Any]


class ChatTemplate:
    """One model's template; `ids` turns a conversation into a prompt that ends where the assistant begins."""

    def __init__(self, source: str, vocabulary: Tokens) -> None:
        if len(source) > _MAX_TEMPLATE:
            raise ModelFileError(
                f"The model's chat template is {len(source)} characters long; at most {_MAX_TEMPLATE}."
            )
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise ModelFileError(f"The model's chat template is broken: {error}.") from error
        self._vocabulary = vocabulary
        self._knows_calls = CALL_MARKER in source
        self._markers = _pattern(vocabulary.control_texts)

    def ids(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """The prompt; raises InvalidRequest with the template's own words when it refuses the conversation."""
        if self._knows_calls:
            messages = [_with_parsed_calls(message) for message in messages]
        else:
            messages, tools = write_tools(messages, tools), ()
        text = self._render(self._split(list(messages)), self._split(list(tools)))
        return self._encode(text)

    def _render(self, messages: list[Any], tools: list[Any]) -> str:
        parts, size = [], 0
        try:
            for part in self._template.generate(
                messages=messages,
                tools=tools or None,
                add_generation_prompt=True,
                bos_token=self._vocabulary.bos_text,
                eos_token=self._vocabulary.eos_text,
            ):
                parts.append(part)
                size += len(part)
                if size > _MAX_RENDERED:
                    raise InvalidRequest("The conversation is too long for this model's template.", param="messages")
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise InvalidRequest(
                f"The model's chat template does not accept these messages: {error}", param="messages"
            ) from error
        return "".join(parts)

    def _encode(self, text: str) -> list[int]:
        bos = self._vocabulary.bos_text
        add_bos = self._vocabulary.adds_bos and not (bos and text.startswith(bos))
        ids: list[int] = []
        for number, part in enumerate(text.split(_BORDER)):
            if part:
                ids += self._vocabulary.encode(part, special=True, bos=add_bos and number == 0)
        return ids

    def _split(self, value: Any) -> Any:
        """Break up every marker in every string of a JSON value."""
        if isinstance(value, str):
            clean = value.replace(_BORDER, "")
            return (
                self._markers.sub(lambda found: found[0][0] + _BORDER + found[0][1:], clean) if self._markers else clean
            )
        if isinstance(value, Mapping):
            return {key: self._split(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._split(item) for item in value]
        return value


def write_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The same conversation in plain messages: tools in the system message, calls and results as marked text."""
    written = [_plain(message) for message in messages]
    if not tools:
        return written
    listing = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = _TOOLS_TEXT.format(tools=listing)
    if written and written[0]["role"] == "system":
        return [{"role": "system", "content": f"{written[0]['content']}\n\n{text}"}, *written[1:]]
    return [{"role": "system", "content": text}, *written]


def _plain(message: Message) -> Message:
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = [_call_text(call["function"]) for call in message.get("tool_calls") or ()]
    return {"role": message["role"], "content": "\n".join(filter(None, [content, *calls]))}


def _call_text(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"] or "{}"
    return f'{CALL_MARKER}\n{{"name": {json.dumps(function["name"])}, "arguments": {arguments}}}\n</tool_call>'


def _with_parsed_calls(message: Message) -> Message:
    """Templates print a call's arguments as JSON, so they get the object and not its text."""
    calls = message.get("tool_calls")
    if not calls:
        return {**message, "content": message.get("content") or ""}
    parsed = [{**call, "function": {**call["function"], "arguments": _object(call["function"])}} for call in calls]
    return {**message, "content": message.get("content") or "", "tool_calls": parsed}


def _object(function: Mapping[str, Any]) -> Any:
    try:
        return json.loads(function["arguments"] or "{}")
    except ValueError as error:
        raise InvalidRequest(
            f"The arguments of an earlier call to {function['name']!r} are not JSON.", param="messages"
        ) from error


def _pattern(texts: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True))) if texts else None


def _environment() -> jinja2.Environment:
    """What chat templates are written for: trimmed blocks, break and continue, and these functions."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def to_json(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    def now(form: str) -> str:
        return datetime.datetime.now(datetime.UTC).strftime(form)

    environment.globals.update(raise_exception=refuse, strftime_now=now)
    environment.filters["tojson"] = to_json
    environment.filters["from_json"] = json.loads
    return environment


def no_template() -> Unsupported:
    """The error for a model that was never taught to chat."""
    return Unsupported("This model has no chat template. Use /v1/completions.", param="messages")
