"""Text that somebody else made, as tokens of this node's own vocabulary; and a beginning that is not said twice. Pure.

The pieces of the tokens make up exactly the text, whatever the vocabulary does at the beginning of a text: that is what
readers see. The ids are what another place goes on from.
"""

from __future__ import annotations

from collections.abc import Sequence

from node.generation import Model, Token

_SENTINEL = "\n"  # before it, so that a vocabulary that adds a blank to a beginning adds it there


def retokenized(model: Model, text: str) -> list[Token]:
    """Tokens whose pieces are `text`; at least one for a text that is not empty."""
    if not text:
        return []
    data = text.encode()
    begin, sentinel = model.encode(""), model.encode(_SENTINEL)
    for ids in (model.encode(text)[len(begin) :], model.encode(_SENTINEL + text)[len(sentinel) :]):
        pieces = [model.decode((id,)) for id in ids]
        if b"".join(pieces) == data:
            return [Token(id, piece) for id, piece in zip(ids, pieces, strict=True)]
    return _whole(ids, data)


def _whole(ids: Sequence[int], data: bytes) -> list[Token]:
    """Where the pieces do not add up, the text hangs on the first token."""
    return [Token(id, b"" if number else data) for number, id in enumerate(ids or (0,))]


class Continuation:
    """Drops what an upstream says again of what was said already.

    It was given `said` as the beginning of its answer, and may go on after it, as it should, or begin anew. While its
    text is the beginning of what was said nothing is let through; where the whole of it came again, the rest is.
    """

    def __init__(self, said: str) -> None:
        self._said = said
        self._held = ""
        self._decided = not said

    def push(self, text: str) -> str:
        """What of `text`, and of what was held back, is new."""
        if self._decided:
            return text
        self._held += text
        if len(self._held) < len(self._said) and self._said.startswith(self._held):
            return ""
        self._decided = True
        return self._held.removeprefix(self._said)

    def finish(self) -> str:
        """What was held back at the end: it only looked like a repetition."""
        held, self._held = ("", "") if self._decided else (self._held, "")
        return held
