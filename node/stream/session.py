"""One generation and everyone who reads it.

The session is the generation's sink and writes its journal; readers read the journal and nothing else, so that any
number of them, slow or late, see the same text at their own pace: a reader holds only a cursor. A reader that lags gets
what it missed in one piece. Memory is bounded by the request's own `max_tokens`, which the model's context bounds.

With a recorder the session is durable: nothing is readable, the end included, before the recorder has stored it.

All methods run on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from node.errors import EngineFailed, NodeError
from node.generation import End, Entry, Event, Failed, Finished, Request, Sink, Started, Token, TokenSource
from node.stream.journal import Journal
from node.stream.text import TextAssembler

RETRIES, RETRY_S = 60, 5.0  # an end that could not be stored (disk full) is tried again for some minutes


class Recorder(Protocol):
    """Stores what a session writes."""

    def record(
        self, id: str, first: int, entries: Sequence[Entry], end: End | None, done: Callable[[Exception | None], None]
    ) -> None:
        """Store `entries`, numbered from `first`, and the end if there is one; `done` is called after the commit."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of consecutive entries; `cursor` is the number of the next one."""

    text: str
    tokens: tuple[Token, ...]
    cursor: int


class Session:
    """One generation: `feed` it `source`'s events, read it with `take` and `changed`, `cancel` it.

    `entries` are those that a restarted node found in its store: the request goes on after them.
    """

    def __init__(
        self,
        request: Request,
        source: TokenSource,
        recorder: Recorder | None = None,
        entries: Iterable[Entry] = (),
    ) -> None:
        self.request = request
        self.cached_tokens = 0
        self.completion_tokens = 0
        self._places: tuple[str, ...] = ()
        self._source = source
        self._recorder = recorder
        self._assembler = TextAssembler(request.stop)
        self._journal = Journal(durable=recorder is not None)
        self._end: End | None = None
        self._end_stored = False
        self._waiting: list[asyncio.Future[None]] = []
        self._lags: dict[object, bool] = {}
        self._held = False
        self._retries = 0
        self._restore(entries)

    @classmethod
    def ended(cls, request: Request, entries: Iterable[Entry], end: End | None) -> Session:
        """A session that is only read: what the store has of a generation that is over."""
        session = cls(request, _NO_SOURCE, None, entries)
        session._show(session.count, end or Failed(EngineFailed("This generation was never finished.")))
        return session

    @property
    def end(self) -> End | None:
        """How it ended, once that may be told."""
        return self._end if self._end_stored else None

    @property
    def count(self) -> int:
        """How many entries may be read."""
        return self._journal.visible

    def feed(self, event: Event) -> None:
        """Take one event from the source; whatever comes after the end is dropped."""
        if self._end is not None:
            return
        if isinstance(event, Token):
            self._append(event)
        elif isinstance(event, Started):
            self.cached_tokens = event.cached_tokens
            if event.place:
                self._places = (*self._places, event.place)
            return
        else:
            self._finish(event)
        self._store()

    def take(self, cursor: int) -> Piece | None:
        """Everything readable from `cursor` on as one piece, or None; raises journal.Evicted."""
        entries = self._journal.read(cursor)
        return _piece(entries, cursor) if entries else None

    def between(self, start: int, end: int) -> Piece:
        """Entries `start` to `end`, the latter not included, as one piece; both must be readable."""
        return _piece(self._journal.read(start, end), start)

    async def changed(self, cursor: int, timeout: float | None = None) -> bool:
        """Wait until there is something at `cursor` or the session ended; False when `timeout` seconds passed first."""
        if self.count > cursor or self.end is not None:
            return True
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        timer = None if timeout is None else loop.call_later(timeout, _resolve, waiter)
        self._waiting.append(waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiting:
                self._waiting.remove(waiter)
        return self.count > cursor or self.end is not None

    async def finished(self) -> End:
        """Wait for the end."""
        while self.end is None:
            await self.changed(self.count)
        return self.end

    @property
    def entries(self) -> Sequence[Entry]:
        """All readable entries so far."""
        return self._journal.read(0)

    @property
    def text(self) -> str:
        """All readable text so far."""
        return "".join(entry.text for entry in self._journal.read(0))

    @property
    def tokens(self) -> tuple[Token, ...]:
        """All readable tokens so far."""
        return tuple(entry.token for entry in self._journal.read(0) if entry.token is not None)

    def cancel(self) -> None:
        """Nobody wants the rest: stop the source, end the session. Safe to call at any time."""
        if self._end is None:
            self._source.cancel(self.request.id)
            self._finish(self._finished("cancelled"))
            self._store()

    def lagging(self, reader: object, lags: bool) -> None:
        """A reader says whether it lags; while all of them do, the source is held."""
        self._lags[reader] = lags
        self._hold_if_all_lag()

    def left(self, reader: object) -> None:
        """A reader that spoke of lagging is gone."""
        self._lags.pop(reader, None)
        self._hold_if_all_lag()

    def suspend(self, error: NodeError) -> None:
        """This process stops: readers hear `error`, but the store keeps the generation unfinished for the next life."""
        if self._end is None:
            self._source.cancel(self.request.id)
            self._show(self._journal.visible, Failed(error))

    def _hold_if_all_lag(self) -> None:
        held = bool(self._lags) and all(self._lags.values())
        if held != self._held and self._end is None:
            self._held = held
            self._source.hold(self.request.id, held)

    def _append(self, token: Token) -> None:
        self.completion_tokens += 1
        self._journal.append(self._assembler.push(token.piece), token)
        if self._assembler.stopped:
            self._source.cancel(self.request.id)
            self._finish(self._finished("stop"))

    def _finish(self, end: End) -> None:
        if tail := self._assembler.finish():
            self._journal.append(tail, None)
        self._end = replace(end, places=self._places) if isinstance(end, Finished) and self._places else end

    def _finished(self, reason: Literal["stop", "cancelled"]) -> Finished:
        return Finished(reason, len(self.request.prompt), self.completion_tokens)

    def _restore(self, entries: Iterable[Entry]) -> None:
        """Take up stored entries as if they had just been written, but store and show them no second time."""
        for entry in entries:
            if entry.token is not None:
                self.completion_tokens += 1
                self._assembler.push(entry.token.piece)
            self._journal.append(entry.text, entry.token)
        self._journal.unsent()
        self._journal.stored(self._journal.count)

    def _store(self) -> None:
        if self._recorder is None:
            self._show(self._journal.count, self._end)
            return
        first, entries = self._journal.unsent()
        count, end = first + len(entries), self._end
        self._recorder.record(
            self.request.id, first, entries, end, lambda error: self._stored(first, count, end, error)
        )

    def _stored(self, first: int, count: int, end: End | None, error: Exception | None) -> None:
        """A store that fails does not stop the stream; what it missed is given again, so that it never has a gap."""
        if error is not None:
            self._journal.unstored(first)
            if end is not None and self._retries < RETRIES:
                self._retries += 1
                asyncio.get_running_loop().call_later(RETRY_S, self._store)
        self._show(count, end)

    def _show(self, count: int, end: End | None) -> None:
        self._journal.stored(count)
        self._end = self._end or end
        self._end_stored = self._end_stored or end is not None
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            _resolve(waiter)


class _NoSource:
    """Where a generation that is over comes from."""

    def submit(self, request: Request, sink: Sink) -> None:
        raise AssertionError("it is over")

    def cancel(self, request_id: str) -> None:
        pass

    def hold(self, request_id: str, held: bool) -> None:
        pass


_NO_SOURCE = _NoSource()


def _piece(entries: Sequence[Entry], start: int) -> Piece:
    if len(entries) == 1 and (token := entries[0].token) is not None:  # a reader that keeps up gets each token so
        return Piece(entries[0].text, (token,), start + 1)
    tokens = tuple(entry.token for entry in entries if entry.token is not None)
    return Piece("".join(entry.text for entry in entries), tokens, start + len(entries))


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
