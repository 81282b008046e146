"""Taking out of a text what patterns name, before it leaves the fleet. Pure.

A pattern is the name of one that is known here, or a regular expression. An expression comes with a profile, and must
never take long, whatever text it meets: so what it can match is bounded, and so is the number of ways to match it.

- Every repeat has an upper bound, and what a whole match repeats is at most `MOST_LENGTH` pieces long.
- Repeats that may give back what they took, and alternatives, multiply the ways; at most `MOST_WAYS`. A possessive
  repeat, `{1,64}+`, gives nothing back and has one way.
- There are no back-references, no looking ahead or behind.

Together with the longest text that is redacted at all, that bounds the time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final

MOST_PATTERN = 200  # characters
MOST_LENGTH, MOST_WAYS = 512, 64
MOST_TEXT = 128 << 10  # characters of all texts of a request

# The most particular first, in which order they count: a card's number must not be taken for a telephone's. What may
# follow is looked at without making the match fail as a whole: "IBAN, then a Word", "10.0.0.1." and "card, then 2nd".
KNOWN: Final[Mapping[str, str]] = {
    "email": r"[\w.%+-]{1,64}+@[\w-]{1,63}+(?:\.[\w-]{1,63}+){1,4}+",
    "iban": r"\b(?:[A-Z]{2}\d{2}(?: ?+[A-Z0-9]){11,30}|"
    r"[A-Za-z]{2}\d{2}(?: ?+[A-Za-z]{4})?+(?: ?+\d){7,26})(?![A-Za-z0-9])",
    "card": r"(?<!\w)\d(?:[ -]?+\d){12,18}(?!\w)",
    "phone": r"(?<![\w.])\+?\d(?:[ ()/-]{0,2}+\d){6,14}(?!\w)",
    "ip": r"(?<![\w.])\d{1,3}+(?:\.\d{1,3}+){3}(?!\w|\.\d)",
}

_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
_REFUSED: Mapping[Any, str] = {
    codes.ASSERT: "it looks ahead or behind",
    codes.ASSERT_NOT: "it looks ahead or behind",
    codes.GROUPREF: "it refers back to a group",
    codes.GROUPREF_EXISTS: "it depends on a group",
}


class Redactor:
    """Replaces what the patterns match by `[name]`; expressions without a name by `[redacted]`."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Raises ValueError with the pattern and what is wrong with it."""
        known = [name for name in KNOWN if name in patterns]
        own = [pattern for pattern in patterns if pattern not in KNOWN]
        self._rules = [(re.compile(KNOWN[name]), f"[{name}]") for name in known]
        self._rules += [(re.compile(checked(pattern)), "[redacted]") for pattern in own]

    def text(self, text: str) -> str:
        """`text` without what the patterns name."""
        for rule, instead in self._rules:
            text = rule.sub(instead, text)
        return text

    def value(self, value: Any) -> Any:
        """A JSON value with every string in it redacted, keys left as they are."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        if isinstance(value, Mapping):
            return {key: self.value(item) for key, item in value.items()}
        return value


def checked(pattern: str) -> str:
    """The pattern, when its time is bounded; raises ValueError."""
    if not 0 < len(pattern) <= MOST_PATTERN:
        raise ValueError(f"`{pattern[:40]}` must have 1 to {MOST_PATTERN} characters")
    try:
        tree = parser.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"`{pattern}` is no regular expression: {error}") from error
    length, ways, least = _measure(tree, pattern)
    if length > MOST_LENGTH:
        raise ValueError(f"`{pattern}` could match {length} pieces, more than {MOST_LENGTH}; lower the bounds in it")
    if ways > MOST_WAYS:
        raise ValueError(
            f"`{pattern}` could match in more than {MOST_WAYS} ways; make its repeats possessive, as in {{1,64}}+"
        )
    if least == 0:
        raise ValueError(f"`{pattern}` matches an empty text")
    return pattern


def _measure(items: Iterable[Any], pattern: str) -> tuple[int, int, int]:
    """The longest match in pieces, the ways to match (both cut off beyond the bounds), and the shortest match."""
    length, ways, least = 0, 1, 0
    for code, argument in items:
        if reason := _REFUSED.get(code):
            raise ValueError(f"`{pattern}` cannot be used: {reason}")
        more, factor, short = _piece(code, argument, pattern)
        length = min(length + more, MOST_LENGTH + 1)
        ways = min(ways * factor, MOST_WAYS + 1)
        least += short
    return length, ways, least


def _piece(code: Any, argument: Any, pattern: str) -> tuple[int, int, int]:
    if code in _REPEATS:
        least, most, body = argument
        return _repeat(code, least, most, body, pattern)
    if code is codes.BRANCH:
        branches = [_measure(branch, pattern) for branch in argument[1]]
        lengths, ways, leasts = zip(*branches, strict=True)
        return max(lengths), sum(ways), min(leasts)
    if code is codes.SUBPATTERN:
        return _measure(argument[-1], pattern)
    if code is codes.ATOMIC_GROUP:
        return _measure(argument, pattern)
    return (0, 1, 0) if code is codes.AT else (1, 1, 1)


def _repeat(code: Any, least: int, most: int, body: Any, pattern: str) -> tuple[int, int, int]:
    if most is codes.MAXREPEAT or most > MOST_LENGTH:
        raise ValueError(f"`{pattern}` repeats without a bound; write {{1,64}} and not + or *")
    length, ways, short = _measure(body, pattern)
    inner = MOST_WAYS + 1 if ways > 1 and most > 6 else ways**most
    own = 1 if code is codes.POSSESSIVE_REPEAT else most - least + 1
    return min(length * most, MOST_LENGTH + 1), min(inner * own, MOST_WAYS + 1), short * least
