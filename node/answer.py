"""The client's half of the streaming protocol, without I/O: bytes -> events -> text, errors and the closing figures.

`SseDecoder` cuts events out of bytes; an `Answer` reads them. Only the keys that are used get decoded, because the
benchmark runs this on the cores of the server that it measures. The client's errors hang under NodeError:

NodeError
└── ClientError        what goes wrong on the way to a node rather than in it
    ├── Unreachable    no connection could be made
    └── BrokenStream   the answer stopped early, fell silent, or is not what the protocol allows
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from node.errors import (
    ContextLengthExceeded,
    EngineFailed,
    InvalidRequest,
    ModelNotFound,
    NodeError,
    NotFound,
    Overloaded,
    TooLarge,
    Unauthorized,
    Unavailable,
    Unsupported,
)

MAX_LINE_BYTES = 1 << 20
_BOM = codecs.BOM_UTF8
_BY_CODE: Mapping[str, type[NodeError]] = {
    kind.code: kind
    for kind in (
        *(ContextLengthExceeded, Unsupported, Unauthorized, NotFound, ModelNotFound),
        *(TooLarge, Overloaded, Unavailable, EngineFailed),
    )
    if kind.code
}
_BY_STATUS: Mapping[int, type[NodeError]] = {
    **{401: Unauthorized, 403: Unauthorized, 404: NotFound, 413: TooLarge},
    **{429: Overloaded, 502: Unavailable, 503: Unavailable, 504: Unavailable},
}
_BY_KIND: Mapping[str, type[NodeError]] = {
    kind.kind: kind for kind in (InvalidRequest, Unauthorized, Overloaded, EngineFailed)
}


class ClientError(NodeError):
    """What goes wrong on the way to a node rather than in it."""

    code = "client_error"


class Unreachable(ClientError):
    """No connection could be made."""

    retryable = True


class BrokenStream(ClientError):
    """The answer stopped early, fell silent or is not what the protocol allows."""

    retryable = True


@dataclass(frozen=True, slots=True)
class Usage:
    """What an answer cost, in tokens; `cached_tokens` of the prompt came from a warm prefix."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One function the model wants called; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer; `at` is `time.perf_counter()` when it arrived."""

    text: str
    at: float


@dataclass(frozen=True, slots=True)
class Done:
    """The end of an answer. Seconds count from the sending of the request; None where no text or no usage came."""

    finish_reason: str
    usage: Usage | None
    ttft_s: float | None
    total_s: float
    tokens_per_second: float | None
    model: str
    id: str
    tool_calls: tuple[ToolCall, ...] = ()


class SseDecoder:
    """Server-sent events out of bytes cut anywhere: `feed` returns the data of each event that is complete.

    Comments, blank lines and fields other than `data` vanish; an event without its closing blank line stays inside.
    Lines end with LF, CRLF or CR. Raises BrokenStream over `limit` bytes in a line or an event, and on invalid UTF-8.
    """

    __slots__ = ("_after_cr", "_data", "_first", "_limit", "_rest", "_size")

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._rest = bytearray()  # the line whose end has not come
        self._data: list[bytes] = []  # the data lines of the event whose end has not come
        self._size = 0
        self._after_cr = False
        self._first = True

    def feed(self, data: bytes) -> list[str]:
        """The events that `data` completes, in order."""
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")  # the second half of a CRLF that was cut
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in data:
            self._rest += data
            self._check(len(self._rest))
            return []
        lines = data.split(b"\n")
        if self._rest:
            lines[0] = bytes(self._rest) + lines[0]
        self._rest = bytearray(lines.pop())
        self._check(len(self._rest))
        if self._first:
            self._first = False
            lines[0] = lines[0].removeprefix(_BOM)
        return self._events(lines)

    def _events(self, lines: list[bytes]) -> list[str]:
        events = []
        for line in lines:
            if line.startswith(b"data:") or line == b"data":
                self._size += len(line)
                self._check(self._size)
                self._data.append(line[5:].removeprefix(b" "))
            elif line:
                self._check(len(line))
            elif self._data:
                events.append(self._dispatch())
        return events

    def _dispatch(self) -> str:
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data.clear()
        self._size = 0
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise BrokenStream("The node sent an event that is not UTF-8.") from error

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise BrokenStream(f"The node sent a line or an event of more than {self._limit} bytes.")


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolDelta(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    tool_calls: list[_ToolDelta] | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


class SaidError(msgspec.Struct):
    """What a server puts under `error`."""

    message: str | None = None
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class ErrorBody(msgspec.Struct):
    """The body of a refusal."""

    error: SaidError


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] = msgspec.field(default_factory=list)
    usage: _Usage | None = None
    error: SaidError | None = None
    id: str = ""
    model: str = ""


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class Answer:
    """What one stream has said so far."""

    def __init__(self, started: float) -> None:
        self.started = started
        self.first: float | None = None
        self.last = 0.0
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.id = self.model = ""
        self.calls: dict[int, list[str]] = {}

    def take(self, event: str, at: float) -> str | None:
        """The text in one event, None where it has none; raises the error that it carries."""
        try:
            chunk = _decode_chunk(event)
        except msgspec.DecodeError as error:
            raise BrokenStream(f"The node sent an event that is not a chat chunk ({error}).") from error
        if chunk.error is not None:
            raise error_from(500, chunk.error)
        if chunk.usage is not None:
            self.usage = _count(chunk.usage)
        if not chunk.choices:
            return None
        choice = chunk.choices[0]
        if choice.finish_reason is not None:
            self.finish_reason = choice.finish_reason
            self.id, self.model = chunk.id, chunk.model
        if choice.delta.tool_calls:
            self._call(choice.delta.tool_calls)
        if choice.delta.content:
            if self.first is None:
                self.first = at
            self.last = at
        return choice.delta.content

    def _call(self, deltas: Sequence[_ToolDelta]) -> None:
        for delta in deltas:
            call = self.calls.setdefault(delta.index, ["", "", ""])
            function = delta.function or _Function()
            call[0] += delta.id or ""
            call[1] += function.name or ""
            call[2] += function.arguments or ""

    def done(self, at: float) -> Done:
        """The closing event; raises BrokenStream when no choice was ever finished."""
        if self.finish_reason is None:
            raise BrokenStream("The node ended the stream without saying why the answer is finished.")
        ttft = None if self.first is None else self.first - self.started
        return Done(
            finish_reason=self.finish_reason,
            usage=self.usage,
            ttft_s=ttft,
            total_s=at - self.started,
            tokens_per_second=self._rate(),
            model=self.model,
            id=self.id,
            tool_calls=tuple(ToolCall(*self.calls[index]) for index in sorted(self.calls)),
        )

    def _rate(self) -> float | None:
        """Tokens per second after the first one, so that the prompt's share does not count."""
        tokens = self.usage.completion_tokens if self.usage else 0
        seconds = 0.0 if self.first is None else self.last - self.first
        return (tokens - 1) / seconds if tokens > 1 and seconds > 0 else None


def _count(usage: _Usage) -> Usage:
    details = usage.prompt_tokens_details
    return Usage(usage.prompt_tokens, usage.completion_tokens, (details.cached_tokens or 0) if details else 0)


def error_from(status: int, said: SaidError, retry_after: int | None = None) -> NodeError:
    """The server's own error again, by its code, else its status, else its type."""
    named = _BY_CODE.get(str(said.code)) or _BY_STATUS.get(status)
    fallback = InvalidRequest if 400 <= status < 500 else EngineFailed
    kind = named or _BY_KIND.get(said.type or "", fallback)
    error = kind.__new__(kind)  # some classes make their message from numbers, which are already in the text
    message = printable(said.message or f"The node answered {status}.")
    hint = None if retry_after is None else f"Try again in {retry_after} seconds."
    NodeError.__init__(error, message, param=said.param, hint=hint, retry_after=retry_after)
    return error


def printable(text: str) -> str:
    """`text` fit for one line of a terminal or a log."""
    return "".join(character if character.isprintable() else " " for character in text)
