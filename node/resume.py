"""One answer over many connections, without I/O: what has come, what to ask for next, when to try again and when not.

Every chunk carries the number of the answer's last entry in it. `Ledger` keeps the text under these numbers: what comes
twice is dropped, a node that lost entries (a power cut) takes back the reader's text to the last border that stands.
`Effort` spaces the attempts: exponential, with jitter, so that the readers of a node that comes back do not all come at
once; what the node itself says (Retry-After) is the least. Time comes in as `now`, in seconds.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from node.answer import Answer, Done, TextDelta, TextRewind
from node.chunks import BrokenStream, Chunk, Unreachable
from node.errors import Conflict, NodeError, Overloaded, Unavailable

STALL_S = 1.0  # a gap between two pieces of text that a reader notices
_STEADY_S = 5.0  # a connection that held so long ends an outage, even where it brought nothing new
_MOST_SAID = 8  # a node that says "come back" so often in a row, and then has nothing, does not mean it
_RETURNABLE = (Unreachable, BrokenStream, Overloaded, Unavailable)
_STANDING = re.compile(r"number (-?\d{1,9})\b")


@dataclass(frozen=True, slots=True)
class Patience:
    """How hard to try: pauses from `first_s` doubling to `most_s`; an outage of `give_up_s` is the end.

    `start_s` is how long a node is sought that never answered at all; `silence_s` after which a connection counts as
    dead (a node sends something every `server.keepalive_s`, 10 seconds by default).
    """

    first_s: float = 0.1
    most_s: float = 5.0
    give_up_s: float = 120.0
    start_s: float = 0.0
    silence_s: float = 25.0


What = Literal["opened", "lost", "moved", "resumed", "rewound"]


@dataclass(frozen=True, slots=True)
class Happening:
    """What befell a resumable answer; `seq` is the last number its reader had then, `why` the reason of a loss."""

    id: str
    what: What
    seq: int
    at: float
    why: str = ""


class Effort:
    """When to try again. `rng` gives numbers from 0 to 1."""

    def __init__(self, patience: Patience, rng: Callable[[], float]) -> None:
        self._patience = patience
        self._rng = rng
        self._tries = 0
        self._said = 0
        self._lost: float | None = None
        self._opened: float | None = None
        self._was_there = False

    def opened(self, now: float) -> None:
        """A connection was made and the node answered."""
        self._opened, self._was_there = now, True

    def progress(self) -> None:
        """Something new came: the outage is over."""
        self._tries = self._said = 0
        self._lost = None

    def after(self, error: NodeError, now: float) -> float:
        """Seconds to wait before the next attempt; raises `error` when there should be none."""
        if not isinstance(error, _RETURNABLE):
            raise error
        if self._opened is not None and now - self._opened >= _STEADY_S:
            self.progress()
        if self._opened is not None and isinstance(error, Unavailable):
            self._said += 1
        self._opened = None
        self._lost = now if self._lost is None else self._lost
        wait = max(self._pause(), error.retry_after or 0)
        never = isinstance(error, Unreachable) and not self._was_there
        limit = self._patience.start_s if never else self._patience.give_up_s
        if now + wait - self._lost > limit or self._said > _MOST_SAID:
            raise error
        return wait

    def _pause(self) -> float:
        longest = min(self._patience.most_s, self._patience.first_s * 2.0 ** min(self._tries, 30))
        self._tries += 1
        return longest * (0.5 + self._rng() / 2)


class Ledger:
    """What has come of one answer. `last` is the number of its last entry here; the next to ask for is one more."""

    def __init__(self, answer: Answer, start: int = 0) -> None:
        self.answer = answer
        self.last = self._floor = self._base = start - 1
        self._pieces: list[tuple[int, str]] = []  # every chunk's number, the border, and its text
        self.connections = self._stalls = 0
        self.torn = False  # the connection goes on after a border that lies behind the one we could go back to
        self._stalled_s = 0.0
        self._text_at: float | None = None

    @property
    def crc(self) -> str:
        """The CRC-32 of the text up to `last`; empty where this does not hold all of it, or nothing."""
        if self._base != -1 or not self._pieces:
            return ""
        return f"{zlib.crc32(''.join(text for _, text in self._pieces).encode()):08x}"

    def opened(self) -> bool:
        """A connection begins: what it says up to the last number is old. Whether it is not the first."""
        self._floor = self.last
        self.torn = False
        self.connections += 1
        return self.connections > 1

    def take(self, chunk: Chunk, at: float) -> TextDelta | TextRewind | None:
        """One chunk; raises the error that it carries."""
        cursor = chunk.outpost
        if cursor is None:
            text = self.answer.take(chunk, at)
            return self._delta(text, at, None) if text else None
        if cursor.rewind:
            return self.rewind(cursor.seq, at)
        text = self.answer.take(chunk, at, fresh=cursor.seq > self._floor)
        if cursor.seq > self.last or text:
            self._pieces.append((cursor.seq, text or ""))
            self.last = max(self.last, cursor.seq)
        return self._delta(text, at, cursor.seq) if text else None

    def rewind(self, seq: int, at: float) -> TextRewind | None:
        """Only entries up to `seq` stand. Text cannot be cut inside a chunk, so it goes back to the border before."""
        kept = [piece for piece in self._pieces if piece[0] <= seq]
        dropped = "".join(text for _, text in self._pieces[len(kept) :])
        before, self.last = self.last, kept[-1][0] if kept else min(seq, self._base)
        self._base = min(self._base, self.last)
        self._pieces, self._floor, self.torn = kept, self.last, seq > self.last
        self.answer.forget(self.last)
        return TextRewind(self.last, dropped, at) if dropped or self.last < before else None

    def ahead(self, error: Conflict, at: float) -> TextRewind | None:
        """The node refused: the reader has more than it has. None where that makes no sense."""
        found = _STANDING.search(error.message)
        return self.rewind(min(int(found[1]) if found else -1, self.last - 1), at)

    def done(self, at: float) -> Done:
        """The closing event; raises BrokenStream when no end was told."""
        done = self.answer.done(at)
        return replace(done, resumes=self.connections - 1, stalls=self._stalls, stalled_s=self._stalled_s)

    def _delta(self, text: str, at: float, seq: int | None) -> TextDelta:
        if self._text_at is not None and at - self._text_at > STALL_S:
            self._stalls += 1
            self._stalled_s += at - self._text_at
        self._text_at = at
        return TextDelta(text, at, seq)
