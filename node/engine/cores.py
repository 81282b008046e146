"""The CPU threads of an engine: how many there are just now, and who has them. Belongs to the engine's thread.

This is the only place that sets a number of threads. `contention` decides how many, apart for steps that stream and for
those that only read prompts: the less there is to do between two barriers, the more a neighbour costs. A prompt that is
read aside gets half of them while others stream.
"""

from __future__ import annotations

import logging

from node.engine.contention import Contention
from node.engine.context import Context

log = logging.getLogger(__name__)

_TELL_EVERY_S = 10.0  # at most one line


class Cores:
    """`context` is where the steps run, made with as many threads as there may ever be."""

    def __init__(self, context: Context, *, adapts: bool) -> None:
        self._context = context
        self._all = self._most = context.threads
        most = self._most if adapts else 1
        self._streaming, self._reading = Contention(most), Contention(most, suspicious=False)
        self._adapts = adapts
        self.shared = False  # with something that is read aside
        self._told, self._tell_at = (self._most, self._most), 0.0

    @property
    def threads(self) -> int:
        """Threads that decode, in the steps and aside; a number that is only tried does not count."""
        return self._streaming.settled if self._adapts else self._most

    def limit(self, most: int | None) -> None:
        """At most so many from now on, None for all; what was learned of neighbours is learned anew."""
        allowed = max(1, min(most or self._all, self._all))
        if allowed == self._most:
            return
        self._most = allowed
        count = allowed if self._adapts else 1
        self._streaming, self._reading = Contention(count), Contention(count, suspicious=False)
        self._told = (self.threads, self._reading.settled)
        if not self._adapts:
            self._context.use_threads(allowed)

    def undivided(self, streams: bool) -> None:
        """The step gets all; with `streams` it decodes for some, else it only reads prompts."""
        self.shared = False
        if self._adapts:
            self._context.use_threads(self._streaming.threads if streams else self._reading.threads)

    def divided(self, streams: bool) -> int:
        """Something is read aside, and gets what is returned: half, or all when nothing streams."""
        self.shared = True
        half = self.threads // 2
        self._context.use_threads(max(1, self.threads - half))
        return max(1, half) if streams else self.threads

    def observe(self, streams: int, prompt_tokens: int, seconds: float, now: float) -> None:
        """What a step did and took. Steps of both kinds, and those beside something read aside, say nothing."""
        if self.shared or (streams and prompt_tokens):
            return
        if streams:
            self._streaming.observe(streams, seconds, now)
        else:
            self._reading.observe(0, seconds / prompt_tokens, now, weight=prompt_tokens)
        settled = (self.threads, self._reading.settled)
        if self._adapts and settled != self._told and now >= self._tell_at:
            self._tell(settled)
            self._told, self._tell_at = settled, now + _TELL_EVERY_S

    def _tell(self, settled: tuple[int, int]) -> None:
        what = "others want the cores" if settled < self._told else "the cores are free again"
        log.info(what, extra={"threads": settled[0], "threads_reading": settled[1], "of": self._most})
