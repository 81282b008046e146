"""Lines of keys, compared with what the parser itself finds when a text is cut after each line."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.fleet.lines import line_of, lines_of

TEXT = '''\
# a comment [not.a.table]
name = "x"   # = y
"quoted key" = 1
a.b . 'c.d' = 2

[table]
text = """
[no.table]
key = 1 "" # "
\\""" ends"""
literal = \'\'\'
[no]
\'\'\'
list = [ # a comment with ]
  "[", 1,
  2,
]
inline = { one = 1, two = "}" }
[ table . "sub table" ]
deep.er = true
[[rows]]
id = 1
[[rows]]
id = 2
[rows.more]
of = "the second"
'''


def test_everything_has_its_line() -> None:
    lines = lines_of(TEXT)
    assert lines == {
        ("name",): 2,
        ("quoted key",): 3,
        ("a",): 4,
        ("a", "b"): 4,
        ("a", "b", "c.d"): 4,
        ("table",): 6,
        ("table", "text"): 7,
        ("table", "literal"): 11,
        ("table", "list"): 14,
        ("table", "inline"): 18,
        ("table", "sub table"): 19,
        ("table", "sub table", "deep"): 20,
        ("table", "sub table", "deep", "er"): 20,
        ("rows",): 21,
        ("rows", "0"): 21,
        ("rows", "0", "id"): 22,
        ("rows", "1"): 23,
        ("rows", "1", "id"): 24,
        ("rows", "1", "more"): 25,
        ("rows", "1", "more", "of"): 26,
    }


def test_what_has_no_line_has_that_of_its_table() -> None:
    lines = lines_of(TEXT)
    assert line_of(lines, ("table", "inline", "two")) == 18
    assert line_of(lines, ("table", "missing")) == 6
    assert line_of(lines, ("nowhere", "x")) == 1
    assert line_of(lines, ()) == 1


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_both_kinds_of_line_ends(end: str) -> None:
    assert lines_of(end.join(["", "[a]", "b = 1", "c = [", "1]", "d = 2"])) == {
        ("a",): 2,
        ("a", "b"): 3,
        ("a", "c"): 4,
        ("a", "d"): 6,
    }


def test_no_line_end_at_the_end() -> None:
    assert lines_of("a = 1\nb = 2") == {("a",): 1, ("b",): 2}
    assert lines_of("") == {}


def paths(tree: Any) -> set[tuple[str, ...]]:
    """Every path of a parsed text, without those inside inline tables and lists of values."""
    found: set[tuple[str, ...]] = set()
    for key, value in tree.items():
        found.add((key,))
        if isinstance(value, dict):
            found |= {(key, *below) for below in paths(value)}
    return found


def found_by_cutting(text: str) -> dict[tuple[str, ...], int]:
    """The first line after which each path is there; only for values that end on their line."""
    lines = text.splitlines(keepends=True)
    first: dict[tuple[str, ...], int] = {}
    for number in range(1, len(lines) + 1):
        for path in paths(tomllib.loads("".join(lines[:number]))):
            first.setdefault(path, number)
    return first


NAMES = st.sampled_from(["a", "b-1", '"c d"', "'e.f'", '"#"', '"]"'])
VALUES = st.sampled_from(["1", '"x # y"', "'[t]'", "[1, [2]]", '["a]", "#"]', '"""one"""', "true # [x]", "'''\"'''"])


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Tables with keys and comments, each name at most once in its table."""
    lines: list[str] = []
    for header in draw(st.lists(NAMES, unique=True, max_size=4)):
        lines.append(draw(st.sampled_from([f"[t.{header}]", f"[ t . {header} ] # x", f"  [t.{header}]"])))
        for name in draw(st.lists(NAMES, unique=True, max_size=4)):
            lines.append(draw(st.sampled_from(["", "# [c]", "\t"])))
            lines.append(f"{draw(st.sampled_from(['', '  ']))}{name} = {draw(VALUES)}")
    return "\n".join(lines)


@given(documents())
def test_lines_are_those_that_the_parser_shows(text: str) -> None:
    assert lines_of(text) == found_by_cutting(text)


@given(st.text(alphabet="ab.=[]{}\"'#\n 1,\\", max_size=60))
def test_any_text_is_survived(text: str) -> None:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert set(lines_of(text)) >= {(key,) for key in tomllib.loads(text)}
