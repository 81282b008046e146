"""Past answers of this node, for guesses: where the last few tokens stood before, and what followed them. Pure.

Who may see what: an answer is guessed for the session that it was given to. For other sessions of its tenant it is
guessed once `min_sessions` different ones were given the very same; for other tenants never, unless tenants share. What
is only guessed never leaves the node: a guess is shown when the model says the same by itself.

How much is kept: the newest answers, in two generations. When the younger one has reached half of the budget, the older
one is dropped; what is still said comes into the younger one by being said. Costs are counted, not measured: they are
upper bounds for CPython (a test measures).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from node.generation import Caller

WIDTH = 3  # tokens that an answer is found by, once it has begun
TAILS = (32, 12)  # last tokens of a prompt that the beginning of an answer is found by
LEAST, MOST = 4, 4096  # tokens of an answer that is kept; of a longer one, the first
END = -1  # follows every answer

TOKEN_BYTES = 160  # itself, its place and what finds it
ANSWER_BYTES = 800
SCOPE_BYTES = 600

Scope = tuple[str, str | None]  # tenant and session; None is everybody there
Place = tuple["array[int]", int]  # what follows stands there, up to END or the end of the array


def place_key(first: int, second: int, third: int) -> int:
    """What finds the token after these three."""
    return (first << 42) | (second << 21) | third


def beginning_key(tail: Sequence[int]) -> int:
    """What finds the answer to a prompt that ends so; never the same as a `place_key`."""
    return -1 - abs(hash(tuple(tail)))


class Answers:
    """All that is kept, within `budget` bytes. Belongs to one thread."""

    def __init__(self, budget: int, min_sessions: int = 3, *, shared: bool = False) -> None:
        self._budget = budget
        self._min_sessions = min_sessions
        self._shared = shared
        self._young, self._old = _Generation(), _Generation()

    @property
    def bytes(self) -> int:
        """At most so much memory is used."""
        return self._young.bytes + self._old.bytes

    def add(self, caller: Caller, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """An answer was given. Without a session it is nobody's, and not kept."""
        if not caller.session or len(answer) < LEAST:
            return
        tokens = array("i", answer[:MOST])
        tenant = self._tenant(caller)
        name = (tenant, tokens.tobytes())
        sessions = self._young.sessions.get(name)
        if sessions is not None and (caller.session in sessions or len(sessions) >= self._min_sessions):
            return
        sessions = (sessions or self._old.sessions.get(name, frozenset())) | {caller.session}
        self._young.sessions[name] = sessions
        everybody = len(sessions) >= self._min_sessions
        self._young.put((tenant, None if everybody else caller.session), prompt, tokens)
        if self._young.bytes >= self._budget // 2:
            self._young, self._old = _Generation(), self._young

    def find(self, caller: Caller, key: int) -> Place | None:
        """What this caller may see that followed there last."""
        tenant = self._tenant(caller)
        scopes: tuple[Scope, ...] = ((tenant, caller.session), (tenant, None)) if caller.session else ((tenant, None),)
        for generation in (self._young, self._old):
            for scope in scopes:
                if (at := generation.places.get(scope, {}).get(key)) is not None:
                    return generation.tokens, at
        return None

    def forget(self) -> None:
        """Erase everything, also for guesses that follow an answer just now."""
        for generation in (self._young, self._old):
            del generation.tokens[:]
        self._young, self._old = _Generation(), _Generation()

    def _tenant(self, caller: Caller) -> str:
        return "" if self._shared else caller.tenant


class _Generation:
    """Answers one after the other, and by whom they may be found."""

    def __init__(self) -> None:
        self.tokens: array[int] = array("i")
        self.places: dict[Scope, dict[int, int]] = {}
        self.sessions: dict[tuple[str, bytes], frozenset[str]] = {}
        self.bytes = 0

    def put(self, scope: Scope, prompt: Sequence[int], answer: array[int]) -> None:
        if scope not in self.places:
            self.bytes += SCOPE_BYTES
        places, begin = self.places.setdefault(scope, {}), len(self.tokens)
        for tail in TAILS:
            places[beginning_key(prompt[-tail:])] = begin
        for at in range(WIDTH, len(answer)):
            places[place_key(answer[at - 3], answer[at - 2], answer[at - 1])] = begin + at
        self.tokens.extend(answer)
        self.tokens.append(END)
        self.bytes += ANSWER_BYTES + TOKEN_BYTES * len(answer)
