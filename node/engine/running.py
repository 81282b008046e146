"""One request inside the llama.cpp engine."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from node.engine.context import Floats
from node.engine.guess import Guess
from node.engine.guide import Matcher
from node.engine.sampling import Sampler
from node.generation import LEVELS, Request

DUE_S = 20.0  # with a slot and without a token


class Running:
    """One request on its way; `tokens[:cached]` are in the KV cache."""

    __slots__ = (
        "aside",
        "cached",
        "due",
        "generated",
        "guess",
        "held",
        "length",
        "matcher",
        "request",
        "sampler",
        "since",
        "slot",
        "started",
        "state",
        "tokens",
        "waiting",
        "warm",
    )

    def __init__(
        self, request: Request, slot: int, sampler: Sampler | None, matcher: Matcher | None, now: float = 0.0
    ) -> None:
        self.request = request
        self.since = now  # since when it has had its slot
        self.slot = slot
        self.sampler = sampler
        self.matcher = matcher
        self.length = len(request.prompt) + len(request.continued)
        self.tokens: npt.NDArray[np.int32] = np.empty(len(request.prompt) + request.max_tokens, np.int32)
        self.tokens[: self.length] = (*request.prompt, *request.continued)
        self.cached = 0
        self.warm = 0  # the first of them that need not be read
        self.generated = len(request.continued)
        self.guess: Guess | None = None  # from the first token of the answer on
        self.started = False
        self.held = False
        self.due = False  # it waited so long for its first token that nobody takes cells from it, until it ends
        self.waiting = False  # an older sequence is reading what this one begins with
        self.aside = False  # being read by a thread of its own; has no part in the steps
        self.state: Floats | None = None  # sum of hidden states so far (embeddings)

    @property
    def rank(self) -> int:
        """How urgent it is; 0 is the most."""
        return LEVELS.index(self.request.level)

    def age(self, now: float) -> None:
        """Note whether it is due: whoever has a slot has its cells in the end, whatever comes after it."""
        self.due = self.due or (self.generated == len(self.request.continued) and now - self.since >= DUE_S)

    @property
    def pending(self) -> int:
        """Tokens that are not in the cache yet; 1 is a sequence that streams."""
        return self.length - self.cached
