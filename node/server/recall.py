"""Answers that may be given again: what an overloaded node says to a question that it answered a moment ago. Pure.

Only answers to those who allow this are kept, only for a while, and only for callers of the same tenant (of the same
key where there is none). What makes two questions the same is everything that shapes an answer, the seed included. An
answer that was drawn at random without a seed is nobody else's: who asks again wants another draw.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from node.generation import Caller, Entry, Finished, Request

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def question(request: Request, *, seeded: bool) -> bytes:
    """The same for requests that ask for the same, by callers who may have each other's answers; empty is never asked.

    `seeded`: the client chose the seed. A greedy answer has none.
    """
    greedy = request.sampling.temperature == 0
    if not (seeded or greedy):
        return b""
    sampling = replace(request.sampling, seed=0) if greedy else request.sampling
    whose = Caller(request.caller.tenant) if request.caller.tenant else Caller(user=request.caller.user)
    asked = replace(request, id="", sampling=sampling, caller=whose, level="standard", ttl_s=None, asked=None)
    return hashlib.sha256(_encode(asked)).digest()


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, and when it was finished."""

    entries: tuple[Entry, ...]
    end: Finished
    at: float


class Recall:
    """The latest whole answers by question: at most `most` with `most_entries` in all, for `keep_s` seconds."""

    def __init__(self, most: int = 256, most_entries: int = 1 << 16, keep_s: float = 300.0) -> None:
        self._most, self._most_entries, self._keep_s = most, most_entries, keep_s
        self._answers: OrderedDict[bytes, Answer] = OrderedDict()
        self._entries = 0

    def __len__(self) -> int:
        return len(self._answers)

    def keep(self, question: bytes, entries: Sequence[Entry], end: Finished, now: float) -> None:
        """Remember a whole answer; the oldest give way."""
        self._drop(question)
        self._answers[question] = Answer(tuple(entries), end, now)
        self._entries += len(entries)
        while len(self._answers) > self._most or self._entries > self._most_entries:
            self._drop(next(iter(self._answers)))
        self._expire(now)

    def find(self, question: bytes, now: float) -> Answer | None:
        """The latest answer to it."""
        self._expire(now)
        return self._answers.get(question)

    def _expire(self, now: float) -> None:
        while self._answers and now - next(iter(self._answers.values())).at > self._keep_s:
            self._drop(next(iter(self._answers)))

    def _drop(self, question: bytes) -> None:
        if answer := self._answers.pop(question, None):
            self._entries -= len(answer.entries)
