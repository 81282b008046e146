"""One generation and everyone who reads it.

The session is the generation's sink. It keeps every piece of text in order, so that any number of readers, slow or
late, see the same text at their own pace: a reader holds only a cursor. Memory is bounded by the request's own
`max_tokens`, which the model's context bounds. A reader that lags gets what it missed in one piece.

All methods run on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from node.generation import End, Event, Finished, Request, Started, Token
from node.stream.text import TextAssembler


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of consecutive tokens; `cursor` is where reading goes on."""

    text: str
    tokens: tuple[Token, ...]
    cursor: int


class Session:
    """One generation: `feed` it events, read it with `take` and `changed`. `cancel` tells the source to stop."""

    def __init__(self, request: Request, cancel: Callable[[str], None]) -> None:
        self.request = request
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.end: End | None = None
        self._cancel = cancel
        self._assembler = TextAssembler(request.stop)
        self._entries: list[tuple[str, Token | None]] = []
        self._waiting: list[asyncio.Future[None]] = []

    def feed(self, event: Event) -> None:
        """Take one event from the source; whatever comes after the end is dropped."""
        if self.end is not None:
            return
        if isinstance(event, Token):
            self._append(event)
        elif isinstance(event, Started):
            self.cached_tokens = event.cached_tokens
        else:
            self._finish(event)
        self._wake()

    def take(self, cursor: int) -> Piece | None:
        """Everything from `cursor` on as one piece, or None where there is nothing yet."""
        entries = self._entries[cursor:]
        if not entries:
            return None
        tokens = tuple(token for _, token in entries if token is not None)
        return Piece("".join(text for text, _ in entries), tokens, cursor + len(entries))

    async def changed(self, cursor: int, timeout: float | None = None) -> bool:
        """Wait until there is something at `cursor` or the session ended; False when `timeout` seconds passed first."""
        if len(self._entries) > cursor or self.end is not None:
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
        return len(self._entries) > cursor or self.end is not None

    async def finished(self) -> End:
        """Wait for the end."""
        while self.end is None:
            await self.changed(len(self._entries))
        return self.end

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(text for text, _ in self._entries)

    @property
    def tokens(self) -> tuple[Token, ...]:
        """All tokens so far."""
        return tuple(token for _, token in self._entries if token is not None)

    def cancel(self) -> None:
        """Nobody wants the rest: stop the source, end the session. Safe to call at any time."""
        if self.end is None:
            self._cancel(self.request.id)
            self._finish(self._finished("cancelled"))
            self._wake()

    def _append(self, token: Token) -> None:
        self.completion_tokens += 1
        self._entries.append((self._assembler.push(token.piece), token))
        if self._assembler.stopped:
            self._cancel(self.request.id)
            self._finish(self._finished("stop"))

    def _finish(self, end: End) -> None:
        if tail := self._assembler.finish():
            self._entries.append((tail, None))
        self.end = end

    def _finished(self, reason: Literal["stop", "cancelled"]) -> Finished:
        return Finished(reason, len(self.request.prompt), self.completion_tokens)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            _resolve(waiter)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
