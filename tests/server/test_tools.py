"""Tools: definitions are checked, and the grammar lets exactly the right answers through."""

import json
from typing import Any

import llguidance
import pytest

from node.errors import InvalidRequest
from node.generation import Constraint
from node.server.tools import constraint_for, definitions

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS = definitions([WEATHER, CLOCK])
TOKENIZER = llguidance.LLTokenizer("byte")


def accepts(constraint: Constraint | None, text: str) -> bool:
    """Whether `text` may be a whole answer."""
    assert constraint is not None
    assert llguidance.LLMatcher.validate_grammar(constraint.text, TOKENIZER) == ""
    matcher = llguidance.LLMatcher(TOKENIZER, constraint.text)
    tokens = TOKENIZER.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def call(name: str = "weather", arguments: str = '{"city": "Oslo", "days": 2}') -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


AUTO = constraint_for(TOOLS, "auto", True)
REQUIRED = constraint_for(TOOLS, "required", True)


@pytest.mark.parametrize(
    "text",
    ["", "no call", "half <tool", "a\nb ☃", call(), "Let me see.\n" + call(), call() + "\n" + call("clock", "{}")],
)
def test_auto_is_free_text_or_calls(text: str) -> None:
    assert accepts(AUTO, text)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>whatever",
        call("nothing"),
        call(arguments='{"days": 2}'),
        call(arguments='{"city": "Oslo", "no": 1}'),
        call(arguments='{"city":"Oslo"}'),  # one spelling only: blanks cost steps
        call("clock", '{"a": 1}'),
        call() + " and on",
        call() + "\n",
    ],
)
def test_auto_lets_no_other_call_through(text: str) -> None:
    assert not accepts(AUTO, text)


def test_required_is_a_call_from_the_first_character() -> None:
    assert accepts(REQUIRED, call("clock", "{}"))
    assert accepts(REQUIRED, call() + "\n" + call())
    assert not accepts(REQUIRED, "")
    assert not accepts(REQUIRED, " " + call())


def test_a_named_function_is_the_only_one() -> None:
    only = constraint_for(TOOLS, {"type": "function", "function": {"name": "clock"}}, True)
    assert accepts(only, call("clock", "{}"))
    assert not accepts(only, call("clock", "{}") + "\n" + call("clock", "{}")), "one call, also where parallel is on"
    assert not accepts(only, call())


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_without_parallel_calls_there_is_one(choice: str) -> None:
    one = constraint_for(TOOLS, choice, False)
    assert accepts(one, call())
    assert not accepts(one, call() + "\n" + call())


def test_references_inside_a_schema_resolve() -> None:
    schema = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}
    tools = definitions([{"type": "function", "function": {"name": "f", "parameters": schema}}])
    assert accepts(constraint_for(tools, "required", False), call("f", '{"n": 3}'))
    assert not accepts(constraint_for(tools, "required", False), call("f", '{"n": "3"}'))


def test_no_call_no_constraint() -> None:
    assert constraint_for(TOOLS, "none", True) is None
    assert constraint_for((), None, True) is None
    assert constraint_for((), "auto", True) is None


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ((), "required", "tool_choice"),
        (TOOLS, "any", "tool_choice"),
        (TOOLS, {"type": "function", "function": {"name": "other"}}, "tool_choice"),
        (TOOLS, {"type": "function"}, "tool_choice.function.name"),
        (TOOLS, {"type": "allowed_tools"}, "tool_choice.type"),
        (TOOLS, {}, "tool_choice.type"),
    ],
)
def test_an_impossible_choice_is_refused(tools: Any, choice: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        constraint_for(tools, choice, True)
    assert caught.value.param == param


def deep(levels: int) -> dict[str, Any]:
    return json.loads('{"a":' * levels + "{}" + "}" * levels)


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([3], "tools[0]"),
        ([{"type": "function"}], "tools[0].function"),
        ([{"type": "custom", "function": {"name": "f"}}], "tools[0].type"),
        ([WEATHER, {"type": "function", "function": {"name": "a b"}}], "tools[1].function.name"),
        ([{"type": "function", "function": {"name": "n" * 65}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": 3}}], "tools[0].function.name"),
        ([WEATHER, WEATHER], "tools"),
        ([CLOCK] * 129, "tools"),
        ([{"type": "function", "function": {"name": "f", "parameters": []}}], "tools[0].function.parameters"),
        (
            [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}],
            "tools[0].function.parameters",
        ),
        ([{"type": "function", "function": {"name": "f", "parameters": deep(70)}}], "tools[0].function.parameters"),
    ],
)
def test_a_bad_definition_is_refused_by_its_place(tools: list[Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        definitions(tools)
    assert caught.value.param == param


def test_definitions_keep_openais_form() -> None:
    assert TOOLS[0]["function"]["description"] == "The weather"
    assert TOOLS[1]["function"]["parameters"] == {"type": "object", "properties": {}, "additionalProperties": False}
