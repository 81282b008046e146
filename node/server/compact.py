"""A stream's events at the lower response levels; around a reply that makes them at level 3.

level 1: `data: "text"`, JSON strings and nothing else, then `data: [DONE]`
level 2: {"outpost":{"seq":N},"choices":[{"delta":{"content":"text"}}]}; the first event has the role, the level and a
         render hint, the last the finish reason, the usage and a severity (`warning` where the answer was cut short)

Whenever the node changes the level it says so, at every level, in an event without choices:
{"outpost":{"level":1,"reason":"slow link","severity":"warning"},"choices":[]}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from node.generation import Finished, Token
from node.server.level import EVERYTHING, Conditions, Levels
from node.server.replies import DONE, Reply, encode
from node.stream.session import Piece

Render = Literal["markdown", "json"]


class Levelled:
    """A reply for a reader that asked for a level; `look` gives the conditions and the time."""

    def __init__(
        self, inner: Reply, levels: Levels, render: Render, look: Callable[[], tuple[Conditions, float]]
    ) -> None:
        self._inner = inner
        self._levels = levels
        self._render = render
        self._look = look
        self.least_level, self.plain = inner.least_level, ""

    def opening(self) -> bytes:
        """The role and how to show what comes."""
        full, level = self._inner.opening(), self._levels.level
        if level == EVERYTHING:
            return full
        if level == 1:
            return b""
        return _event({"seq": -1, "level": level, "render": self._render}, {"delta": {"role": "assistant"}})

    def rewind(self, last: int) -> bytes:
        """Only entries up to `last` stand."""
        full = self._inner.rewind(last)
        return full if self._levels.level == EVERYTHING else _event({"seq": last, "rewind": True})

    def piece(self, piece: Piece) -> bytes:
        """The piece at the level of the moment, after a word about the level if it just changed."""
        notice = self._notice()
        full = self._inner.piece(piece)  # also where it is not sent: it may count what it said
        if self._levels.level == EVERYTHING:
            return notice + full
        if not piece.text:
            return notice
        if self._levels.level == 1:
            return notice + b"data: " + encode(piece.text) + b"\n\n"
        return notice + _event({"seq": piece.cursor - 1}, {"delta": {"content": piece.text}})

    def closing(self, end: Finished, cached_tokens: int, seq: int) -> bytes:
        """How it ended and what it cost, and `[DONE]`."""
        full, level = self._inner.closing(end, cached_tokens, seq), self._levels.level
        if level == EVERYTHING:
            return full
        if level == 1:
            return DONE
        told = {"seq": seq, "severity": "warning" if end.reason == "length" else "info"}
        choice: dict[str, Any] = {"delta": {}, "finish_reason": end.reason}
        return _event(told, choice, usage=self.usage(end, cached_tokens)) + DONE

    def whole(self, text: str, tokens: Sequence[Token], end: Finished, cached_tokens: int) -> bytes:
        """Only streams have levels."""
        return self._inner.whole(text, tokens, end, cached_tokens)

    def usage(self, end: Finished, cached_tokens: int) -> dict[str, Any]:
        """The same at every level that tells it."""
        return self._inner.usage(end, cached_tokens)

    def _notice(self) -> bytes:
        if self.least_level == EVERYTHING:
            return b""
        before = self._levels.level
        reason = self._levels.observe(*self._look())
        if reason is None:
            return b""
        severity = "warning" if self._levels.level < before else "info"
        return _event({"level": self._levels.level, "reason": reason, "severity": severity})


def _event(told: dict[str, Any], *choices: dict[str, Any], **more: Any) -> bytes:
    return b"data: " + encode({"outpost": told, "choices": choices, **more}) + b"\n\n"
