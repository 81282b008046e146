"""Tool calls read back from an answer while it is being generated; the form is described in `tools.py`.

The result does not depend on where the text is split, except that content and arguments may arrive in more or fewer
pieces. The parser is a small machine; each state takes what it can from the text at hand and says what comes next:

    TEXT       content, until `<tool_call>\\n{"name": "`; the beginning of that mark is held back until it is decided
    NAME       until the quote that ends it
    MIDDLE     `, "arguments": {`
    ARGUMENTS  an object, passed on as it comes; a scanner of depth and strings finds its end
    CLOSE      `}\\n</tool_call>`
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from node.server.tools import CLOSE, HEAD, MIDDLE, OPEN

_START = OPEN + HEAD
_MIDDLE = MIDDLE + "{"
_MAX_NAME = 64
_MARK = re.compile(r'["\\{}\[\]]')


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Text outside of any call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; its arguments follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """The next fragment of a call's arguments, which are JSON text."""

    index: int
    text: str


Delta = ContentDelta | CallStart | ArgumentsDelta


class ToolCallParser:
    """Push text, get deltas. `complete` counts the calls whose arguments are whole."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self.complete = 0
        self._new_id = new_id
        self._started = 0
        self._state = self._text
        self._held = ""
        self._blank = True  # nothing but white space since the start or the last call
        self._name = ""
        self._depth, self._in_string, self._escaped = 0, False, False

    def push(self, text: str) -> list[Delta]:
        """What `text` adds; empty while it is undecided."""
        out: list[Delta] = []
        self._held += text
        while self._held and self._state(out):
            pass
        return out

    def finish(self) -> list[Delta]:
        """What was held back and turned out to be text. A call that broke off stays as far as it came."""
        held, self._held = self._held, ""
        if self._state in (self._name_of_call, self._middle):
            held = _START + self._name + held
        elif self._state != self._text or (self._blank and self._started and not held.strip()):
            held = ""
        return [ContentDelta(held)] if held else []

    def _text(self, out: list[Delta]) -> bool:
        """White space alone is held too: before a call it is not worth being content."""
        start = self._held.find(_START)
        end = start if start >= 0 else len(self._held) - _overlap(self._held, _START)
        plain, rest = self._held[:end], self._held[end:]
        if plain and not (self._blank and not plain.strip()):
            out.append(ContentDelta(plain))
            self._blank = False
        elif start < 0:
            return False
        self._held = rest
        if start >= 0:
            self._held = rest[len(_START) :]
            self._state = self._name_of_call
        return start >= 0

    def _name_of_call(self, out: list[Delta]) -> bool:
        name, quote, _ = self._held.partition('"')
        if len(name) > _MAX_NAME or "\\" in name:
            return self._not_a_call(out, "")
        if not quote:
            return False
        self._name, self._held = name, self._held[len(name) :]
        self._state = self._middle
        return True

    def _middle(self, out: list[Delta]) -> bool:
        if not self._held.startswith(_MIDDLE):
            return not _MIDDLE.startswith(self._held) and self._not_a_call(out, self._name)
        out.append(CallStart(self._started, self._new_id(), self._name))
        self._started += 1
        self._name = ""
        self._held = self._held[len(_MIDDLE) - 1 :]
        self._depth, self._in_string, self._escaped = 0, False, False
        self._state = self._arguments
        return True

    def _arguments(self, out: list[Delta]) -> bool:
        end = self._end_of_object(self._held)
        taken = self._held if end is None else self._held[:end]
        out.append(ArgumentsDelta(self._started - 1, taken))
        self._held = self._held[len(taken) :]
        if end is not None:
            self.complete += 1
            self._state = self._close
        return end is not None

    def _close(self, out: list[Delta]) -> bool:
        if CLOSE.startswith(self._held) and self._held != CLOSE:
            return False
        self._held = self._held.removeprefix(CLOSE)
        self._blank = True
        self._state = self._text
        return True

    def _not_a_call(self, out: list[Delta], name: str) -> bool:
        """It only looked like one: what was taken for its head is content after all."""
        out.append(ContentDelta(_START + name))
        self._name = ""
        self._blank = False
        self._state = self._text
        return True

    def _end_of_object(self, text: str) -> int | None:
        """Where the object that is open ends in `text`; remembers depth, strings and escapes between calls."""
        position = 0
        if self._escaped and text:
            self._escaped, position = False, 1
        while mark := _MARK.search(text, position):
            position = mark.end()
            sign = mark.group()
            if sign == "\\":
                if self._in_string and position == len(text):
                    self._escaped = True
                position += self._in_string
            elif sign == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += 1 if sign in "{[" else -1
                if self._depth == 0:
                    return position
        return None


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that is a beginning of `mark`."""
    longest = min(len(text), len(mark) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(mark[:length])), 0)
