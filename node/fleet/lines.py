"""On which line of a TOML text a key stands; the parser gives values without lines.

The text must be valid TOML: it has been parsed before. What a statement begins with is a header or a key; the value
after it is skipped token by token, so that brackets, comments and quotes in strings do not count.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping

Path = tuple[str, ...]

_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_DOTTED = rf"{_KEY}(?:[ \t]*\.[ \t]*{_KEY})*"
_HEADER = re.compile(rf"\[(\[?)[ \t]*({_DOTTED})[ \t]*\]")
_PAIR = re.compile(rf"({_DOTTED})[ \t]*=")
_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})'
    r"|'''.*?'''(?:'{0,2})"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'"
    r"|#[^\n]*"
    r"|[\[\]{}\n]"
    r"""|[^"'#\[\]{}\n]+"""
    r"|.",
    re.DOTALL,
)


def lines_of(text: str) -> dict[Path, int]:
    """The line, from 1, of every table and key, by its path; of lists of tables the elements count from "0"."""
    found: dict[Path, int] = {}
    table: Path = ()
    lists: dict[Path, int] = {}
    for line, statement in _statements(text):
        if header := _HEADER.match(statement):
            table = _resolved(_parts(header[2]), lists, is_list=bool(header[1]))
            _note(found, table, line)
        elif pair := _PAIR.match(statement):
            _note(found, (*table, *_parts(pair[1])), line)
    return found


def line_of(lines: Mapping[Path, int], path: Path) -> int:
    """The line of `path`, or of what it lies in; 1 for the whole text."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


def _note(found: dict[Path, int], path: Path, line: int) -> None:
    """A dotted name also makes the tables above it."""
    for end in range(1, len(path) + 1):
        found.setdefault(path[:end], line)


def _resolved(path: Path, lists: dict[Path, int], *, is_list: bool) -> Path:
    """A header's path with the numbers of the list elements that it goes through."""
    resolved: Path = ()
    for index, part in enumerate(path):
        resolved = (*resolved, part)
        if is_list and index == len(path) - 1:
            lists[resolved] = lists.get(resolved, -1) + 1
        if resolved in lists:
            resolved = (*resolved, str(lists[resolved]))
    return resolved


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Where each statement begins: its line and the text from there on to that line's end."""
    line, depth, fresh = 1, 0, True
    for token in _TOKEN.finditer(text):
        word = token[0]
        if fresh and word.strip(" \t\r\n") and not word.startswith("#"):
            start = token.start() + len(word) - len(word.lstrip(" \t\r"))
            end = text.find("\n", start)
            yield line, text[start : end if end >= 0 else len(text)]
            fresh = False
        depth += (word in ("[", "{")) - (word in ("]", "}"))
        line += word.count("\n")
        fresh = fresh or (word == "\n" and depth == 0)


def _parts(dotted: str) -> Path:
    """`a."b.c"` -> ("a", "b.c"), by the parser itself."""
    parts: list[str] = []
    tree = tomllib.loads(f"{dotted} = 0")
    while isinstance(tree, dict):
        ((key, tree),) = tree.items()
        parts.append(key)
    return tuple(parts)
