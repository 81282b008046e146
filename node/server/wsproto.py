"""What is spoken on GET /v1/ws: messages, limits, and the state of a connection. Pure: bytes and `now` in, values out.

Handshake. HTTP/1.1 upgrade on the API's own port; permessage-deflate is used if the client offers it. A node with keys
wants `Authorization: Bearer KEY`, or, as browsers cannot set that, the subprotocols `outpost.v1` (or
`outpost.v1.msgpack`) and `outpost-key.B`, B being the key in base64url without padding; the node selects the first kind
and never echoes the second. Without any subprotocol the messages are JSON. Refusals (400, 401, 403 for a foreign
`Origin`, 503) are HTTP responses with OpenAI's error JSON.

Messages are JSON objects in text frames, each with a `type`. REF is the client's own name for a generation: a string of
1 to 64 characters or a whole number from 0; unique among those that run on this connection, free again after the end.

client to node
  {"type":"request","id":REF,"route":"chat"|"text","body":{…},"resumable":false,"key":null}
      starts a generation. `body` is that of /v1/chat/completions or /v1/completions, checked as it is there; the answer
      is always streamed, whatever its `stream` says. `key` is an Idempotency-Key: the same key with the same route and
      body joins what an earlier attempt began, over HTTP too.
  {"type":"resume","id":REF,"stream":ID,"from":0,"crc":""}
      reads a resumable generation from entry number `from` on. `crc`, eight hexadecimal digits, is the CRC-32 of the
      text before it, where the reader has it: after a power cut other text may stand under these numbers (error 409).
  {"type":"interrupt","id":REF}                      stops a generation, for all its readers; answered by `interrupted`
  {"type":"ping","t":SCALAR}                         answered by `pong` with the same `t` (at most 64 characters)
  {"type":"hello","level":3,"binary":false,"heartbeat_s":15}
      changes how this connection speaks; every member may be left out and then stays as it is. Answered by `hello`.

node to client
  {"type":"hello","level":3,"binary":false,"heartbeat_s":15.0,"max_message_bytes":N,"max_generations":N}
      what is in force now
  {"type":"accepted","id":REF,"stream":ID,"resumable":true,"priority":"standard"}
      submitted (it may still wait for a slot, and `priority` is how urgently); the answer to `request` and to `resume`.
      `degraded`, if there, lists what the node's load costs it, like ["shorten"].
      What is not resumable ends within one step when the connection does; what is goes on, and `resume` or
      GET /v1/streams/ID gives the rest.
  {"type":"token","id":REF,"seq":N,"delta":{"content":"…"},"logprobs":{…}}
      one or more entries: all of the answer up to number `seq` has been sent with this and earlier messages, and none
      twice, so that a reader resumes from N + 1. `delta` is a chunk's choices[0].delta; for route text it is
      {"text":"…"}. Several calls may stand in one `tool_calls`; the role is always assistant and is not sent.
      `logprobs` only if asked for. Text ends at a character's border, and a message at a token's.
  {"type":"finish","id":REF,"reason":"stop"|"length"|"tool_calls","seq":N,"delta":{…},"usage":{…}}
      whole: the answer's last entry is number `seq` (-1: it has none). `delta`, if there, is text that was held back
      (what might have become a tool call); it belongs to the answer.
  {"type":"interrupted","id":REF,"seq":N}            stopped on request; entries up to N were sent (-1: none)
  {"type":"rewind","id":REF,"seq":N}                 the reader is ahead of the journal: forget what comes after N
  {"type":"error","id":REF|null,"error":{"message":…,"type":…,"param":…,"code":…},"status":429,"retry_after":2}
      `status` is what HTTP would have said; `retry_after` only where waiting helps, in seconds.
  {"type":"pong","t":SCALAR}
  {"type":"level","level":2,"reason":"slow link"|"little memory"|"well again"}    the node says less, or more, from here

A generation ends with exactly one `finish`, `interrupted` or `error` with its REF. An error whose `id` is null ends
nothing: a malformed message, one of unknown type, or a REF that is in use already or, for `interrupt`, unknown (`param`
is "id"; what ended just before is unknown, too). The connection lives after every error. A message over the limit
closes it with 1009, text that is not UTF-8 with 1007, a broken frame with 1002, a node that stops with 1001 (its
running answers finish before, new requests get a 503 error).

Levels, for weak links and small screens: 1 is text only, 2 adds usage, 3 adds tool calls and logprobs (an answer that
was asked for these stays at 3). Without a level in `hello` everything is told, always; with one, the node goes below it
by itself while the link is slow or memory short, and says so with `level`.

Binary. With the subprotocol `outpost.v1.msgpack`, or after `hello` with `binary`, the node sends binary frames: the
same messages as MessagePack arrays [NUMBER, members in the order given in NUMBERS below]; nil is a member that is not
there, members may be left out at the end, and a `delta` of only text is a plain string. The node takes such frames at
any time, and JSON in text frames too. With `outpost.v1.frame` it sends full frames instead: see `wsframes`.

Heartbeat. The node sends a WebSocket ping every `heartbeat_s` seconds (0.08 to 600); any frame from the client counts
as a sign of life, and so does a slow link that still takes what was written. After 3 silent periods the connection is
suspect, after 5 it is closed (1011): see `heartbeat`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from node.errors import InvalidRequest, NodeError

JSON_PROTOCOL, BINARY_PROTOCOL, FRAME_PROTOCOL = "outpost.v1", "outpost.v1.msgpack", "outpost.v1.frame"
LEAST_HEARTBEAT_S, MOST_HEARTBEAT_S = 0.08, 600.0

Ref = Annotated[str, Meta(min_length=1, max_length=64)] | Annotated[int, Meta(ge=0, lt=1 << 53)]
Scalar = Annotated[str, Meta(max_length=64)] | int | float | bool | None
Level = Literal[1, 2, 3]
Delta = dict[str, Any]


class _Sent(msgspec.Struct, tag_field="type", frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message from a client."""


class Request(_Sent, tag="request", frozen=True):
    """Start a generation."""

    id: Ref
    route: Literal["chat", "text"]
    body: msgspec.Raw
    resumable: bool = False
    key: str | None = None


class Resume(_Sent, tag="resume", frozen=True):
    """Read a generation from entry `start` on."""

    id: Ref
    stream: Annotated[str, Meta(max_length=64)]
    start: Annotated[int, Meta(ge=0, lt=1_000_000_000)] = msgspec.field(default=0, name="from")
    crc: Annotated[str, Meta(pattern="^([0-9a-f]{8})?$")] = ""


class Interrupt(_Sent, tag="interrupt", frozen=True):
    """Stop a generation."""

    id: Ref


class Ping(_Sent, tag="ping", frozen=True):
    """Asks for a Pong."""

    t: Scalar = None


class Hello(_Sent, tag="hello", frozen=True):
    """Change how this connection speaks; None leaves it."""

    level: Level | None = None
    binary: bool | None = None
    heartbeat_s: Annotated[float, Meta(ge=LEAST_HEARTBEAT_S, le=MOST_HEARTBEAT_S)] | None = None


class _Told(msgspec.Struct, tag_field="type", frozen=True, kw_only=True, omit_defaults=True):
    """A message from the node."""


class Terms(_Told, tag="hello", frozen=True):
    """How this connection speaks now."""

    level: int
    binary: bool
    heartbeat_s: float
    max_message_bytes: int
    max_generations: int


class Accepted(_Told, tag="accepted", frozen=True):
    """A generation is submitted, or found."""

    id: Ref
    stream: str
    resumable: bool
    priority: str
    degraded: tuple[str, ...] | None = None


class Token(_Told, tag="token", frozen=True):
    """Entries of an answer up to number `seq`."""

    id: Ref
    seq: int
    delta: Delta
    logprobs: Any = None


class Finish(_Told, tag="finish", frozen=True):
    """The end of a whole answer."""

    id: Ref
    reason: str
    seq: int
    delta: Delta | None = None
    usage: Mapping[str, Any] | None = None


class Interrupted(_Told, tag="interrupted", frozen=True):
    """The end of an answer that its reader stopped."""

    id: Ref
    seq: int


class Rewind(_Told, tag="rewind", frozen=True):
    """The reader must forget what comes after `seq`."""

    id: Ref
    seq: int


class Problem(_Told, tag="error", frozen=True):
    """What went wrong; the end of the generation `id`, if it names one."""

    id: Ref | None
    error: Mapping[str, Any]
    status: int
    retry_after: int | None = None


class LevelChange(_Told, tag="level", frozen=True):
    """The node changed the level by itself."""

    level: int
    reason: str


class Pong(_Told, tag="pong", frozen=True):
    """The answer to Ping."""

    t: Scalar


Sent = Request | Resume | Interrupt | Ping | Hello
Told = Terms | Accepted | Token | Finish | Interrupted | Rewind | Problem | Pong | LevelChange

NUMBERS: Mapping[int, type[msgspec.Struct]] = {
    **{1: Request, 2: Resume, 3: Interrupt, 4: Ping, 5: Hello},
    **{16: Terms, 17: Accepted, 18: Token, 19: Finish, 20: Interrupted, 21: Rewind, 22: Problem, 23: Pong},
    **{24: LevelChange},
}
_NUMBER_OF = {kind: number for number, kind in NUMBERS.items()}
_FIRST_TOLD = 16


class Wrong(InvalidRequest):
    """A message that cannot be understood; `ref` is its id if that much can be read."""

    code = "malformed_message"

    def __init__(self, message: str, ref: Ref | None = None, *, param: str | None = None) -> None:
        super().__init__(message[:300], param=param)  # msgspec may quote what was sent
        self.ref = ref


class _Named(msgspec.Struct):
    id: Ref | None = None


_sent = msgspec.json.Decoder(Sent)
_named = msgspec.json.Decoder(_Named)
_json, _pack = msgspec.json.encode, msgspec.msgpack.encode


def decode(data: str | bytes) -> Sent:
    """One message: JSON if it is text, MessagePack if it is bytes; raises Wrong."""
    text = _unpacked(data) if isinstance(data, bytes) else data
    try:
        return _sent.decode(text)
    except RecursionError as error:
        raise Wrong("This message is nested too deeply.") from error
    except msgspec.ValidationError as error:
        raise Wrong(f"This message is wrong: {error}.", _ref(text)) from error
    except msgspec.DecodeError as error:
        raise Wrong(f"This message is not JSON: {error}.") from error


def encode(message: Told, *, binary: bool) -> bytes:
    """A message as it travels."""
    if not binary:
        return _json(message)
    members = list(msgspec.structs.astuple(message))
    if isinstance(message, Token) and len(message.delta) == 1:
        members[2] = message.delta.get("content", message.delta.get("text", message.delta))
    while members and members[-1] is None:
        members.pop()
    return _pack([_NUMBER_OF[type(message)], *members])


def problem(error: NodeError, ref: Ref | None, body: bytes) -> Problem:
    """An error as a message; `body` is what HTTP would have said."""
    told = msgspec.json.decode(body)["error"]
    return Problem(id=ref, error=told, status=error.status, retry_after=error.retry_after)


def _unpacked(data: bytes) -> bytes:
    """A binary message as the JSON that says the same."""
    try:
        value = msgspec.msgpack.decode(data)
        return _json(_object(value))
    except (msgspec.DecodeError, TypeError, RecursionError, UnicodeDecodeError) as error:
        raise Wrong("This binary message is not the MessagePack of a JSON message.") from error


def _object(value: Any) -> Mapping[str, Any]:
    kind = NUMBERS.get(value[0]) if isinstance(value, list) and value and type(value[0]) is int else None
    if kind is None or value[0] >= _FIRST_TOLD:
        raise Wrong("A binary message must be an array that begins with the number of its kind.")
    names = kind.__struct_encode_fields__
    if len(value) - 1 > len(names):
        raise Wrong(f"A binary message of kind {value[0]} has at most {len(names)} members.")
    members = {name: member for name, member in zip(names, value[1:], strict=False) if member is not None}
    return {"type": kind.__struct_config__.tag, **members}


def _ref(text: str | bytes) -> Ref | None:
    try:
        return _named.decode(text).id
    except (msgspec.DecodeError, RecursionError):
        return None


class _Choice(msgspec.Struct):
    delta: Delta = {}
    text: str = ""
    logprobs: Any = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: tuple[_Choice, ...] = ()


_chunk = msgspec.json.Decoder(_Chunk)


class Part(msgspec.Struct, frozen=True):
    """What some events of a stream say together."""

    delta: Delta
    logprobs: Any = None
    reason: str = ""


def part(events: bytes, level: int) -> Part:
    """The events of one piece as one part, so that no number is cut in two; `level` decides how much is shown."""
    delta: Delta = {}
    logprobs, reason = None, ""
    for event in events.split(b"\n\n"):
        if not event.startswith(b"data: {"):
            continue
        for choice in _chunk.decode(event[6:]).choices:
            _join(delta, choice.delta)
            _join(delta, {"text": choice.text})
            logprobs = logprobs or choice.logprobs
            reason = choice.finish_reason or reason
    if level < 3:
        return Part({name: delta[name] for name in ("content", "text") if name in delta}, None, reason)
    return Part(delta, logprobs, reason)


def _join(delta: Delta, more: Delta) -> None:
    for name, value in more.items():
        if value:
            delta[name] = delta[name] + value if name in delta else value
