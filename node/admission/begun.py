"""A generation that was handed to its source, and what it takes to take it away and hand it over again. Pure.

It goes on after the tokens that it has made (`Request.continued`), so that its reader sees no difference but time.
"""

from __future__ import annotations

from array import array
from dataclasses import replace

from node.generation import Event, Finished, Request, Sink, Started, Token


class Begun:
    """What became of it: tell it all events, and what is done with it."""

    def __init__(self, request: Request, sink: Sink) -> None:
        self.request = request
        self.sink = sink
        self.away = False  # the source was told to stop it, and it has no slot
        self.stopped = False  # and the source has done so
        self._tokens = array("i", request.continued)  # a list of numbers costs twice as much, and there are hundreds
        self._spoke = False

    def heard(self, event: Event) -> bool:
        """Note an event; False for one that its reader must not hear."""
        if isinstance(event, Started):
            first, self._spoke = not self._spoke, True
            return first
        if isinstance(event, Token):
            self._tokens.append(event.id)
        elif self.away and isinstance(event, Finished) and event.reason == "cancelled":
            self.stopped = True
            return False
        return True

    def again(self) -> Request:
        """The rest of it, as a request."""
        self.away = self.stopped = False
        return replace(self.request, continued=tuple(self._tokens), ttl_s=None)

    @property
    def cancelled(self) -> Finished:
        """Its end, where the source has none to tell."""
        return Finished("cancelled", len(self.request.prompt), len(self._tokens))
