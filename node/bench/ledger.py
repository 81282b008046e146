"""Where a node's time goes, by kind of work: `python -m node.bench.ledger FILE serve …` is `outpost serve …`, watched.

Each watched function charges the time until the next one begins or ends to its kind. SIGUSR1 makes it write what each
kind took so far to FILE, in nanoseconds as JSON. Watching costs about a microsecond a call, so the shares are what to
take from it, not the sums.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from node.bench.through import serve
from node.engine.worker import Worker
from node.link import packet
from node.link.connection import Connection
from node.link.crypto import Sealer
from node.link.receiver import Receiver
from node.link.sender import Sender
from node.link.udp import UdpLinks
from node.server.links import Links

IDLE = "idle"
LOOP = asyncio.SelectorEventLoop

# kind -> (where it is, names)
WATCHED: Mapping[str, Sequence[tuple[Any, Sequence[str]]]] = {
    IDLE: [(selectors.DefaultSelector, ("select",))],
    "asyncio": [(LOOP, ("_run_once",))],
    "answers": [(asyncio.Handle, ("_run",)), (Worker, ("_hand_out",)), (Links, ("_happened",))],
    "sockets and their loop": [(UdpLinks, ("_readable", "_flush", "_expire", "_take", "_put"))],
    "connection": [
        (Connection, ("receive_datagram", "datagrams_to_send", "timer", "next_event", "send", "finish", "open"))
    ],
    "packets and FEC": [
        (packet, ("encode", "decode")),
        (Sender, ("push", "finish", "got", "compose", "copy", "launch")),
        (Receiver, ("data", "repair", "mend", "flight", "ended", "got")),
    ],
    "crypto": [(Sealer, ("seal", "open"))],
}


class Ledger:
    """Nanoseconds by kind of work; `clock` gives the time."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._kind, self._since = "other", clock()
        self.spent: Counter[str] = Counter()

    def enter(self, kind: str) -> str:
        """From now on time goes to this kind; gives the one before."""
        now, before = self._clock(), self._kind
        self.spent[before] += now - self._since
        self._kind, self._since = kind, now
        return before

    def watch(self, owner: Any, name: str, kind: str) -> None:
        """Charge what `owner.name` does to this kind, but for what it calls that is watched, too."""
        inner = getattr(owner, name)

        @functools.wraps(inner)
        def watched(*args: Any, **kwargs: Any) -> Any:
            before = self.enter(kind)
            try:
                return inner(*args, **kwargs)
            finally:
                self.enter(before)

        setattr(owner, name, watched)

    def told(self) -> Counter[str]:
        """What was spent until now."""
        self.enter(self._kind)
        return self.spent


def run(words: Sequence[str]) -> None:
    """The watched node."""
    ledger = Ledger()
    for kind, places in WATCHED.items():
        for owner, names in places:
            for name in names:
                ledger.watch(owner, name, kind)
    serve(words, ledger.told)


if __name__ == "__main__":
    run(sys.argv[1:])
