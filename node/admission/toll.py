"""Limits as a stage on a request's way: a TokenSource that takes what a caller may use before it lets a request on.

What an answer may use is reserved when it is asked for, and settled with what it made when it ends; what never began
costs nothing. Where no length was asked for, all that the context leaves could come: an eighth of a burst is reserved
then, and more as the answer grows, so that several can run; where a limit is reached, it ends there (`length`).

A generation that goes on after a restart was counted in its first life, and the inputs of one call for embeddings are
counted together, with the first: or one of more inputs than a burst would never be answered, and would use up its
caller's limits at each try.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from node.admission.limits import Allowance, Limits, Reservation
from node.admission.quota import Quotas
from node.errors import NodeError, RateLimited, TooLarge
from node.generation import Embedded, Event, Failed, Finished, Request, Sink, Started, Token, TokenSource

_SLICES = 8  # of a burst


@dataclass(slots=True)
class _Taken:
    """One request's reservation, the most tokens that it may become, whether it began, and how many tokens it made."""

    reservation: Reservation
    most: int
    slice: int = 0
    began: bool = False
    made: int = 0

    def note(self, event: Event) -> None:
        self.began = self.began or isinstance(event, Started | Token)
        self.made += isinstance(event, Token)

    def spent(self, now: float) -> bool:
        """Whether the answer must end here, although it could be longer."""
        if self.made < self.reservation.output or self.made >= self.most:
            return False
        return self.reservation.extend(min(self.slice, self.most - self.made), now) == 0

    def close(self, now: float) -> None:
        if self.began:
            self.reservation.settle(self.made, now)
        else:
            self.reservation.cancel(now)


class Toll:
    """In front of `source`; what each caller may use of `model`, with a context of so many tokens, is in `quotas`."""

    def __init__(
        self,
        source: TokenSource,
        quotas: Quotas,
        model: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        context: int = 0,
    ) -> None:
        self._source = source
        self._quotas = quotas
        self._model = model
        self._clock = clock
        self._context = context
        self._limits = Limits()
        self._open: dict[str, _Taken] = {}
        self.decisions: Counter[str] = Counter()

    def submit(self, request: Request, sink: Sink) -> None:
        """Pass it on, its answer cut to what its caller may have; raises RateLimited, or TooLarge for good."""
        if request.admitted:
            most = self._allowance(request).most_output  # as in its first life
            cut = request if most is None else replace(request, max_tokens=min(request.max_tokens, most))
            self._source.submit(cut, sink)
            return
        taken = self._open[request.id] = self._reserve(request)

        def forward(event: Event) -> None:
            if self._open.get(request.id) is not taken:
                return  # it was ended here
            taken.note(event)
            if isinstance(event, Finished | Embedded | Failed):
                self._close(request.id)
            sink(event)
            if isinstance(event, Token) and taken.spent(self._clock()):
                self._close(request.id)
                self._source.cancel(request.id)
                sink(Finished("length", len(request.prompt), taken.made))

        try:
            self._source.submit(replace(request, max_tokens=taken.most), forward)
        except NodeError:
            self._close(request.id)
            raise

    def cancel(self, request_id: str) -> None:
        self._source.cancel(request_id)

    def hold(self, request_id: str, held: bool) -> None:
        self._source.hold(request_id, held)

    def headers(self, request_id: str) -> Callable[[], Mapping[str, str]]:
        """Gives the x-ratelimit-* values of a request that is under way, also after its end; none without limits."""
        taken = self._open.get(request_id)
        return dict if taken is None else lambda: taken.reservation.headers(self._clock())

    def status(self) -> Mapping[str, Any]:
        """How it decided since the node began, and how many callers are remembered."""
        decided = {name: self.decisions[name] for name in ("allowed", "limited", "too_large")}
        return {**decided, "under_way": len(self._open), "accounts": len(self._limits)}

    def _reserve(self, request: Request) -> _Taken:
        allowance = self._allowance(request)
        prompt, output = request.batch or len(request.prompt), request.max_tokens
        most = output if allowance.most_output is None else min(output, allowance.most_output)
        open_ended = len(request.prompt) + output >= self._context > 0 and most < output
        if open_ended:
            output = max(1, most // _SLICES)
        try:
            reservation = self._limits.reserve(request.caller, self._model, allowance, prompt, output, self._clock())
        except (RateLimited, TooLarge) as error:
            self.decisions["limited" if isinstance(error, RateLimited) else "too_large"] += 1
            raise
        self.decisions["allowed"] += 1
        return _Taken(reservation, most, output if open_ended else 0)

    def _allowance(self, request: Request) -> Allowance:
        return self._quotas.holder(request.caller.user).allowance(self._model)

    def _close(self, request_id: str) -> None:
        self._open.pop(request_id).close(self._clock())
