"""What a node sends on a stream, read without I/O: bytes -> events -> chunks, and the errors that they carry.

`SseDecoder` cuts events out of bytes, `chunk_of` reads one. Only the keys that are used get decoded, because the
benchmark runs this on the cores of the server that it measures. The client's errors hang under NodeError:

NodeError
└── ClientError        what goes wrong on the way to a node rather than in it
    ├── Unreachable    no connection could be made
    └── BrokenStream   the answer stopped early, fell silent, or is not what the protocol allows
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping

import msgspec

from node.errors import (
    Conflict,
    ContextLengthExceeded,
    EngineFailed,
    Expired,
    Forbidden,
    Gone,
    InvalidRequest,
    ModelNotFound,
    NodeError,
    NotFound,
    Overloaded,
    StoreFailed,
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
        *(ContextLengthExceeded, Unsupported, Unauthorized, Forbidden, NotFound, ModelNotFound, Gone),
        *(TooLarge, Conflict, Overloaded, Unavailable, Expired, EngineFailed, StoreFailed),
    )
    if kind.code
}
_BY_STATUS: Mapping[int, type[NodeError]] = {
    **{401: Unauthorized, 403: Unauthorized, 404: NotFound, 409: Conflict, 410: Gone, 413: TooLarge},
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


class Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class ToolDelta(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: Function | None = None


class Delta(msgspec.Struct, gc=False):
    content: str | None = None
    tool_calls: list[ToolDelta] | None = None


class Choice(msgspec.Struct, gc=False):
    delta: Delta = msgspec.field(default_factory=Delta)  # some clouds leave it out where it says nothing
    finish_reason: str | None = None


class Details(msgspec.Struct):
    cached_tokens: int | None = None


class SaidUsage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: Details | None = None


class SaidError(msgspec.Struct):
    """What a server puts under `error`."""

    message: str | None = None
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class ErrorBody(msgspec.Struct):
    """The body of a refusal."""

    error: SaidError


class Cursor(msgspec.Struct, gc=False):
    """How far the answer has come: all entries up to `seq`; with `rewind`, only those still stand."""

    seq: int
    rewind: bool = False


class Chunk(msgspec.Struct, gc=False):
    """One event of a stream, as far as it is used."""

    choices: list[Choice] = msgspec.field(default_factory=list)
    usage: SaidUsage | None = None
    error: SaidError | None = None
    id: str = ""
    model: str = ""
    outpost: Cursor | None = None


_decode_chunk = msgspec.json.Decoder(Chunk).decode


def chunk_of(event: str) -> Chunk:
    """The chunk in one event's data; raises BrokenStream for anything else."""
    try:
        return _decode_chunk(event)
    except msgspec.DecodeError as error:
        raise BrokenStream(f"The node sent an event that is not a chat chunk ({error}).") from error


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
