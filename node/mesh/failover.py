"""One request on its way through the places that may answer it, one after another if need be.

When a place breaks off, another one goes on from the tokens that were delivered: who has the same model gets them as
`Request.continued` and makes the very tokens that the first would have made, because neither greedy choice nor the draw
of token number N depends on who computes it; the cloud gets their text as the beginning of the assistant's words. The
reader sees one stream. Each place that speaks is told in a `Started`.

Before the first token a second node may be asked, when the first is later than usual (a hedge): who speaks first is
heard, the other one is stopped. Only this node and its neighbours are hedged, within a budget. Who was stopped for
being slower has not failed: once it has let go of the request it may go on with it, should the faster one break off.

All of it happens on the event loop's thread. What an attempt says after it was given up is not heard.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import Protocol

from node.errors import Expired, Filtered, InvalidRequest, NodeError, Unavailable, UpstreamFailed
from node.generation import Embedded, Event, Failed, Finished, Request, Sink, Started, Token, TokenSource
from node.mesh.places import Places
from node.mesh.route import LOCAL, Decision

log = logging.getLogger(__name__)

MOST_PLACES = 4  # that one request may be given to


class Desk(Protocol):
    """Who decides, and counts what happened."""

    places: Places

    def decide(self, request: Request, tried: dict[str, str]) -> Decision:
        """Who may go on with `request`, those in `tried` left out."""

    def may_hedge(self, request: Request, place: str) -> float | None:
        """Seconds after which a second node may be asked; None for never."""

    def hedge(self, request: Request, tried: dict[str, str]) -> str | None:
        """Which one, if there is one and the budget allows it."""

    def paused(self, gone: str, to: str, seconds: float) -> None:
        """A stream went on elsewhere after so long a pause."""

    def ended(self, request: Request, places: list[str]) -> None:
        """The request is over; it was answered by these."""


@dataclass(eq=False, slots=True)
class _Attempt:
    """One place that was asked, when, and what was predicted."""

    place: str
    source: TokenSource
    began: float
    predicted_s: float
    cached: int = 0


class Relay:
    """Runs `request` for `sink`. `places` are those that spoke so far, the one that was chosen first of all."""

    def __init__(self, request: Request, sink: Sink, desk: Desk) -> None:
        self.request = request
        self.places: list[str] = []
        self._sink = sink
        self._desk = desk
        self._made: list[int] = []
        self._attempts: list[_Attempt] = []
        self._stopping: list[_Attempt] = []  # were slower; the place may be asked again when the end has come
        self._stuck: NodeError | None = None  # what broke while nobody but those was left
        self._began = desk.places.clock()
        self._speaks: _Attempt | None = None
        self._tried: dict[str, str] = {}
        self._cached: int | None = None
        self._held = self._over = False
        self._broke: tuple[str, float] | None = None  # who broke off, and when the last token was heard
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self, decision: Decision) -> None:
        """Give it to who was chosen, or to the next one that takes it; raises what the last of them raised."""
        error = self._go_on(decision, None)
        if error is not None:
            self._close()
            raise error

    def cancel(self) -> None:
        """Nobody wants the rest."""
        if not self._over:
            self._close()
            size = len(self.request.prompt)
            made = len(self.request.continued) + len(self._made)
            asyncio.get_running_loop().call_soon(self._sink, Finished("cancelled", size, made))

    def hold(self, held: bool) -> None:
        """Its reader lags, or has caught up."""
        self._held = held
        for attempt in self._attempts:
            attempt.source.hold(self.request.id, held)

    def _go_on(self, decision: Decision, error: NodeError | None) -> NodeError | None:
        """Try one place after another; gives the error that is left when nobody takes it."""
        own: NodeError | None = None  # what this node says counts more than what others say: it knows when to come back
        while decision.why != "nobody" and len(self._tried) < MOST_PLACES:
            error = self._try(decision.place, decision.first_token_s)
            if error is None or _final(decision.place, error):
                return error
            own = error if decision.place == LOCAL else own
            decision = self._desk.decide(self._rest(), self._tried)
        return own or error or Unavailable(_nobody(decision), retry_after=5)

    def _try(self, place: str, predicted_s: float) -> NodeError | None:
        """Ask one; gives what it has against it at once."""
        places = self._desk.places
        record, now = places.record(place), places.clock()
        self._tried[place] = "it was asked before"
        if place != LOCAL:
            record.breaker.allows(now)
        attempt = _Attempt(place, places.source(place), now, predicted_s)
        self._attempts.append(attempt)
        record.began(now)
        try:
            attempt.source.submit(self._rest(), lambda event: self._hear(attempt, event))
        except NodeError as error:
            self._drop(attempt)
            places.failed(place, error)
            return error
        if not self.places:
            self.places.append(place)
        if self._held:
            attempt.source.hold(self.request.id, True)
        self._arm(place)
        return None

    def _rest(self) -> Request:
        """What is still to be answered, in the time that is left for its first token."""
        if not self._made:
            ttl_s, gone_s = self.request.ttl_s, self._desk.places.clock() - self._began
            return self.request if ttl_s is None else replace(self.request, ttl_s=max(0.0, ttl_s - gone_s))
        return replace(self.request, continued=(*self.request.continued, *self._made), ttl_s=None)

    def _hear(self, attempt: _Attempt, event: Event) -> None:
        if attempt in self._stopping and isinstance(event, Finished | Embedded | Failed):
            self._let_go(attempt)
        if self._over or attempt not in self._attempts:
            return
        match event:
            case Started():
                attempt.cached = event.cached_tokens
            case Token():
                self._token(attempt, event)
            case Failed():
                self._failed(attempt, event.error)
            case Finished(reason="cancelled"):
                self._failed(attempt, UpstreamFailed("The answer was stopped where it was made."))
            case Finished() | Embedded():
                self._finished(attempt, event)

    def _token(self, attempt: _Attempt, token: Token) -> None:
        if self._speaks is not attempt:
            self._listen_to(attempt)
        if len(self.request.continued) + len(self._made) >= self.request.max_tokens:
            self._failed(attempt, UpstreamFailed("It says more than it was asked for."))
            return
        self._heard_at = self._desk.places.clock()
        self._made.append(token.id)
        self._sink(token)

    def _listen_to(self, attempt: _Attempt) -> None:
        """This one speaks; the others are stopped."""
        now = self._desk.places.clock()
        self._disarm()
        self._speaks = attempt
        for other in [one for one in self._attempts if one is not attempt]:
            self._stopping.append(other)
            self._stop(other)
        if self.request.kind == "generate":
            self._desk.places.record(attempt.place).spoke(now - attempt.began, attempt.predicted_s, now)
        if self._cached is None:
            self._cached = attempt.cached
        if self._broke is not None:
            gone, at = self._broke
            self._desk.paused(gone, attempt.place, now - at)
            self._broke = None
        if attempt.place not in self.places:
            self.places.append(attempt.place)
        self._sink(Started(self._cached, attempt.place))

    def _finished(self, attempt: _Attempt, end: Finished | Embedded) -> None:
        if self._speaks is not attempt:
            self._listen_to(attempt)
        self._attempts.remove(attempt)
        self._desk.places.record(attempt.place).ended()
        if isinstance(end, Finished):
            end = Finished(end.reason, len(self.request.prompt), len(self.request.continued) + len(self._made))
        self._close()
        self._sink(end)

    def _failed(self, attempt: _Attempt, error: NodeError) -> None:
        """It is given up; another one goes on, if that may help."""
        self._drop(attempt, cancel=True)
        self._desk.places.failed(attempt.place, error)
        if self._attempts:  # a hedge still runs
            return
        self._disarm()
        told = {"id": self.request.id, "place": attempt.place, "reason": error.message, "tokens": len(self._made)}
        if _final(attempt.place, error):
            log.warning("a request failed for good", extra=told)
            self._end(Failed(error))
            return
        if self._speaks is attempt:
            self._broke = attempt.place, self._heard_at
        self._speaks = None
        if len(self.request.continued) + len(self._made) >= self.request.max_tokens:
            self._end(Finished("length", len(self.request.prompt), self.request.max_tokens))
            return
        log.warning("a place broke off; another one goes on", extra=told)
        self._continue(error)

    def _continue(self, error: NodeError) -> None:
        """Give the rest to somebody else, now or when one that was slower has let go of it."""
        decision = self._desk.decide(self._rest(), self._tried)
        if decision.why == "nobody" and self._stopping:
            self._stuck = error
            return
        left = self._go_on(decision, error)
        if left is not None:
            self._end(Failed(left))

    def _let_go(self, attempt: _Attempt) -> None:
        """One that was slower knows nothing of the request any more."""
        self._stopping.remove(attempt)
        self._tried.pop(attempt.place, None)
        error, self._stuck = self._stuck, None
        if error is not None and not self._over:
            self._continue(error)

    def _end(self, end: Event) -> None:
        self._close()
        self._sink(end)

    def _arm(self, place: str) -> None:
        """Ask a second one when this one is late."""
        self._disarm()
        if self._made or len(self._attempts) > 1:
            return
        late_s = self._desk.may_hedge(self.request, place)
        if late_s is not None:
            self._timer = asyncio.get_running_loop().call_later(late_s, self._hedge)

    def _hedge(self) -> None:
        if self._over or self._speaks is not None or len(self._attempts) != 1:
            return
        place = self._desk.hedge(self.request, self._tried)
        if place is not None:
            self._try(place, 0.0)

    def _stop(self, attempt: _Attempt) -> None:
        self._drop(attempt, cancel=True)

    def _drop(self, attempt: _Attempt, *, cancel: bool = False) -> None:
        """It is not heard any more."""
        if attempt in self._attempts:
            self._attempts.remove(attempt)
            self._desk.places.record(attempt.place).ended()
            if cancel:
                attempt.source.cancel(self.request.id)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        if not self._over:
            self._over = True
            self._disarm()
            for attempt in list(self._attempts):
                self._stop(attempt)
            self._desk.ended(self.request, self.places)


def _final(place: str, error: NodeError) -> bool:
    """Whether no other place could, or should, do better: the request is wrong, its time is over, it was filtered."""
    return isinstance(error, Filtered) or (place == LOCAL and isinstance(error, InvalidRequest | Expired))


def _nobody(decision: Decision) -> str:
    blocked = "; ".join(f"{place}: {why}" for place, why in list((decision.blocked or {}).items())[:4])
    return f"Nobody can answer now ({blocked})." if blocked else "Nobody can answer now."
