"""Tool calls read back from text that arrives in any pieces."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.server.calls import ArgumentsDelta, CallStart, ContentDelta, Delta, ToolCallParser

CALL = '<tool_call>\n{"name": "look", "arguments": {"a": "}\\"{[", "b": [1, {}]}}\n</tool_call>'
ARGUMENTS = '{"a": "}\\"{[", "b": [1, {}]}'
HEAD = '<tool_call>\n{"name": "look", "arguments": '


def merged(deltas: list[Delta]) -> list[Delta]:
    """Neighbouring fragments of the same thing as one."""
    out: list[Delta] = []
    for delta in deltas:
        last = out[-1] if out else None
        if isinstance(delta, ContentDelta) and isinstance(last, ContentDelta):
            out[-1] = ContentDelta(last.text + delta.text)
        elif isinstance(delta, ArgumentsDelta) and isinstance(last, ArgumentsDelta) and last.index == delta.index:
            out[-1] = ArgumentsDelta(delta.index, last.text + delta.text)
        else:
            out.append(delta)
    return out


def parse(*pieces: str) -> tuple[list[Delta], int]:
    numbers = itertools.count()
    parser = ToolCallParser(lambda: f"call_{next(numbers)}")
    deltas = [delta for piece in pieces for delta in parser.push(piece)] + parser.finish()
    return merged(deltas), parser.complete


CASES: list[tuple[str, list[Delta], int]] = [
    ("", [], 0),
    ("hello", [ContentDelta("hello")], 0),
    ("  \n", [ContentDelta("  \n")], 0),
    (CALL, [CallStart(0, "call_0", "look"), ArgumentsDelta(0, ARGUMENTS)], 1),
    (
        f"Sure.\n{CALL}\n{CALL}\n",
        [
            ContentDelta("Sure.\n"),
            CallStart(0, "call_0", "look"),
            ArgumentsDelta(0, ARGUMENTS),
            CallStart(1, "call_1", "look"),
            ArgumentsDelta(1, ARGUMENTS),
        ],
        2,
    ),
    ("\n\n" + CALL, [CallStart(0, "call_0", "look"), ArgumentsDelta(0, ARGUMENTS)], 1),
    ("a <tool_c", [ContentDelta("a <tool_c")], 0),
    ("a <tool_call> b", [ContentDelta("a <tool_call> b")], 0),
    ('<tool_call>\n{"name": "look"}', [ContentDelta('<tool_call>\n{"name": "look"}')], 0),
    ('<tool_call>\n{"name": "lo', [ContentDelta('<tool_call>\n{"name": "lo')], 0),
    (HEAD + '{"a": [1', [CallStart(0, "call_0", "look"), ArgumentsDelta(0, '{"a": [1')], 0),
    (HEAD + '{"a": 1}', [CallStart(0, "call_0", "look"), ArgumentsDelta(0, '{"a": 1}')], 1),
    (HEAD + '{"a": 1}}\n</tool', [CallStart(0, "call_0", "look"), ArgumentsDelta(0, '{"a": 1}')], 1),
    (HEAD + "[1]", [ContentDelta(HEAD + "[1]")], 0),
    (CALL + "then", [CallStart(0, "call_0", "look"), ArgumentsDelta(0, ARGUMENTS), ContentDelta("then")], 1),
    ('<tool_call>\n{"name": "' + "n" * 65, [ContentDelta('<tool_call>\n{"name": "' + "n" * 65)], 0),
]


@pytest.mark.parametrize(("text", "deltas", "complete"), CASES)
def test_at_once_and_character_by_character(text: str, deltas: list[Delta], complete: int) -> None:
    assert parse(text) == (deltas, complete)
    assert parse(*text) == (deltas, complete)


FRAGMENTS = st.sampled_from(
    [CALL, "<tool_call>", '\n{"name": "', "look", '", "arguments": ', "{", "}", "\n</tool_call>", '"', "\\", "\n", "a"]
)


@settings(max_examples=300)
@given(st.lists(FRAGMENTS, max_size=8).map("".join), st.data())
def test_any_split_gives_the_same_events(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    edges = [0, *cuts, len(text)]
    assert parse(*(text[start:end] for start, end in itertools.pairwise(edges))) == parse(text)


@settings(max_examples=200)
@given(st.text(max_size=40))
def test_text_without_a_call_is_all_content(text: str) -> None:
    assert "".join(delta.text for delta in parse(text)[0] if isinstance(delta, ContentDelta)) == text


def test_arguments_are_passed_on_while_they_come() -> None:
    parser = ToolCallParser(lambda: "call")
    parser.push(HEAD)
    assert parser.push('{"a"') == [CallStart(0, "call", "look"), ArgumentsDelta(0, '{"a"')]
    assert parser.push(": 1") == [ArgumentsDelta(0, ": 1")]
