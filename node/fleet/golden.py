"""What a profile promises of its model: answers that must come out, and how fast.

    [[golden]]
    prompt = "What is two and two?"   asked as a user's message where the model has a chat template
    matches = "four|4"                a regular expression that must be found in the answer; or
    text = "Four."                    the whole answer, to the letter, as the likeliest tokens make it
    max_tokens = 16

    [floor]
    ttft_s = 0.5                      a first token within so many seconds of the question, on an idle node
    tokens_s = 8.0                    at least so many tokens a second after it

A regular expression comes from who signs profiles, so it is trusted, but not to be without mistakes: one that could
run for minutes on a short text is refused with the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

MOST_GOLDEN = 16
MOST_CHARACTERS = 1000  # of an answer that a regular expression is looked for in
_MOST_CHOICES = (
    8,
    8,
    1,
)  # beside so many loops: each loop costs another power of the length, each choice may double it
_HIDING = re.compile(r"\(\?(#|[a-zA-Z]*x)")  # what is skipped may stand before a repeat, or look like a class

Prompt = Annotated[str, msgspec.Meta(min_length=1, max_length=4000)]
Pattern = Annotated[str, msgspec.Meta(max_length=200)]
Answer = Annotated[str, msgspec.Meta(max_length=2000)]


class Golden(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question, and what its greedy answer must be."""

    prompt: Prompt
    matches: Pattern = ""
    text: Answer = ""
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=256)] = 32

    def accepts(self, answer: str) -> bool:
        """Whether that is the answer, or one of them."""
        if self.text:
            return answer.strip() == self.text.strip()
        return re.search(self.matches, answer[:MOST_CHARACTERS]) is not None


class Floor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The least speed; 0 asks for none."""

    ttft_s: Annotated[float, msgspec.Meta(ge=0, le=600)] = 0.0
    tokens_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0


NO_FLOOR = Floor()
Goldens = Annotated[tuple[Golden, ...], msgspec.Meta(max_length=MOST_GOLDEN)]


def mistakes(golden: Sequence[Golden]) -> Iterator[tuple[tuple[str, ...], str]]:
    """What no single key can show, as (path, message)."""
    for index, one in enumerate(golden):
        path = ("golden", str(index))
        if bool(one.matches) == bool(one.text):
            yield path, "it needs either `matches` or `text`"
        elif one.matches and (problem := pattern_problem(one.matches)):
            yield (*path, "matches"), problem


def pattern_problem(pattern: str) -> str:
    """Why a regular expression cannot be used; "" where it can."""
    try:
        re.compile(pattern)
    except re.error as error:
        return f"it is no regular expression: {error}"
    bare = "".join(_bare(pattern))
    if _HIDING.search(bare):
        return "(?x) and (?#…) hide what is repeated"
    if "\\" in bare or "(?P=" in bare:  # each costs another power of the length, too
        return "it may take for ever: what a group found may not be asked for again"
    loops = choices = 0
    before = ""
    for character in bare:
        loop = character in "*+{"
        if loop and before == ")":
            return "a repeated group may take for ever; repeat single characters or classes only"
        loops += loop
        # In `(?i)` and `.*?` it is none; after `}` it may be one, where nothing was opened.
        choices += character == "|" or (character == "?" and (not before or before not in "(*+?"))
        before = character
    if loops >= len(_MOST_CHOICES) or choices > _MOST_CHOICES[loops]:
        one, two = _MOST_CHOICES[1:]
        return f"it may take for ever: it may have one of * + {{ and {one} of ? |, or two and {two}"
    return ""


def _bare(pattern: str) -> Iterator[str]:
    """The pattern's characters without escaped ones and without the insides of classes; a back-reference is `\\`."""
    position = 0
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            yield "\\" if pattern[position + 1] in "123456789" else "x"
            position += 2
            continue
        if character == "[":
            position = _end_of_class(pattern, position)
            yield "x"
            continue
        yield character
        position += 1


def _end_of_class(pattern: str, start: int) -> int:
    """The position after a class that opens at `start`; a bracket in first place belongs to it."""
    position = start + 1
    position += pattern[position : position + 1] == "^"
    position += pattern[position : position + 1] == "]"
    while position < len(pattern) and pattern[position] != "]":
        position += 2 if pattern[position] == "\\" else 1
    return position + 1
