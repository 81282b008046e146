"""A request and its events as bytes between two nodes with the same model. Pure.

The request is one msgpack map, `Errand`. The answer is a stream of frames, each a length (2 bytes, big-endian) and a
msgpack array that begins with its kind; a frame of length 0 is a sign of life:

    ["s", cached_tokens]                                  it holds a slot
    ["t", id, logprob?, [[id, logprob], …]?]              one token; both know its bytes
    ["e", reason, prompt_tokens, completion_tokens]       the end
    ["f", status, code, message, retry_after?]            it broke

Both come from outside and are bounded before they are believed.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable
from typing import Annotated, Literal

import msgspec

from node.errors import (
    Conflict,
    EngineFailed,
    Expired,
    InvalidRequest,
    NodeError,
    Overloaded,
    Unavailable,
)
from node.generation import (
    Caller,
    Constraint,
    Event,
    Failed,
    Finished,
    Level,
    Logprob,
    Request,
    Sampling,
    Started,
    Token,
)

PATH = "/mesh/generate"
CONTENT_TYPE = "application/vnd.outpost.events"
MAX_BYTES = 8 << 20  # of an errand
MAX_FRAME = 8 << 10
ALIVE = b"\0\0"
TENANT = "mesh"

_MARK = "~"  # between a request's first id and what a node adds
_LENGTH = struct.Struct(">H")
_MAX_TOKENS = 1 << 20

Short = Annotated[str, msgspec.Meta(max_length=128)]
Name = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._:-]{1,128}\Z")]
Id = Annotated[int, msgspec.Meta(ge=0, lt=1 << 24)]
Ids = Annotated[tuple[Id, ...], msgspec.Meta(max_length=_MAX_TOKENS)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 30)]
Small = Annotated[float, msgspec.Meta(ge=-100, le=100)]


class Draws(msgspec.Struct, frozen=True, kw_only=True):
    """`generation.Sampling` within its ranges."""

    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)]
    top_k: Annotated[int, msgspec.Meta(ge=0, le=1000)]
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)]
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)]
    presence_penalty: Small
    frequency_penalty: Small
    repeat_penalty: Annotated[float, msgspec.Meta(ge=0.01, le=10)]
    logit_bias: Annotated[tuple[tuple[Id, Small], ...], msgspec.Meta(max_length=1024)]
    seed: Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """`generation.Constraint`."""

    kind: Literal["json_schema", "regex", "lark"]
    text: Annotated[str, msgspec.Meta(max_length=1 << 20)]


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it travels. `tenant` and `session` are digests; stop strings stay with who asked.

    `id` is the one that it had where it came in first, so that each node that it passes can know it again.
    """

    id: Name
    model_digest: Short
    prompt: Annotated[tuple[Id, ...], msgspec.Meta(min_length=1, max_length=_MAX_TOKENS)]
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=_MAX_TOKENS)]
    sampling: Draws
    rule: Rule | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    ignore_eos: bool = False
    continued: Ids = ()
    tenant: Short = ""
    session: Short = ""
    level: Level = "standard"
    ttl_s: Annotated[float, msgspec.Meta(ge=0, le=7 * 86_400)] | None = None
    hops: Annotated[int, msgspec.Meta(ge=1, le=16)]


_errand = msgspec.msgpack.Decoder(Errand)
_encode = msgspec.msgpack.Encoder().encode


def tenant_digest(tenant: str) -> str:
    """By what a neighbour tells this node's tenants apart; "" stays "", because no tenant is nobody's secret."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:16] if tenant else ""


def tenant_there(tenant: str) -> str:
    """As which tenant a request of this node's `tenant` runs at a neighbour."""
    digest = tenant_digest(tenant)
    return f"{TENANT}/{digest}" if digest else TENANT


def errand_of(request: Request, model_digest: str) -> bytes:
    """`request` on its way to another node."""
    drawn = request.sampling
    rule = request.constraint
    return _encode(
        Errand(
            id=request.id.partition(_MARK)[0],
            model_digest=model_digest,
            prompt=request.prompt,
            max_tokens=request.max_tokens,
            sampling=Draws(**{name: getattr(drawn, name) for name in Draws.__struct_fields__}),
            rule=None if rule is None else Rule(kind=rule.kind, text=rule.text),
            logprobs=request.logprobs,
            ignore_eos=request.ignore_eos,
            continued=request.continued,
            tenant=tenant_digest(request.caller.tenant),
            session=request.caller.session,
            level=request.level,
            ttl_s=request.ttl_s,
            hops=request.hops + 1,
        )
    )


def errand(raw: bytes) -> Errand:
    """What a neighbour asks; raises InvalidRequest when it is too large, malformed or out of bounds."""
    if len(raw) > MAX_BYTES:
        raise InvalidRequest(f"An errand has at most {MAX_BYTES} bytes.")
    try:
        return _errand.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"This is no errand: {error}.") from error


def request_of(asked: Errand, fresh: str, vocabulary: int, context: int) -> Request:
    """The request that an errand asks for; raises InvalidRequest where it cannot be run here.

    `fresh` makes its id one of its own, without which it could not come here twice.
    """
    highest = max((*asked.prompt, *asked.continued, *(token for token, _ in asked.sampling.logit_bias)))
    if highest >= vocabulary:
        raise InvalidRequest(f"Token ids of this model are 0 to {vocabulary - 1}.", param="prompt")
    if len(asked.prompt) + asked.max_tokens > context or len(asked.continued) >= asked.max_tokens:
        raise InvalidRequest(f"This does not fit a context of {context} tokens.", param="prompt")
    drawn = asked.sampling
    return Request(
        id=f"{asked.id}{_MARK}{fresh}",
        prompt=asked.prompt,
        max_tokens=asked.max_tokens,
        sampling=Sampling(**{name: getattr(drawn, name) for name in Draws.__struct_fields__}),
        constraint=None if asked.rule is None else Constraint(asked.rule.kind, asked.rule.text),
        logprobs=asked.logprobs,
        ignore_eos=asked.ignore_eos,
        continued=asked.continued,
        caller=Caller(f"{TENANT}/{asked.tenant}" if asked.tenant else TENANT, "", asked.session),
        level=asked.level,
        ttl_s=asked.ttl_s,
        hops=asked.hops,
    )


def frame(event: Event) -> bytes:
    """One event's frame."""
    match event:
        case Started():
            body: tuple[object, ...] = ("s", event.cached_tokens)
        case Token(logprob=None):
            body = ("t", event.id)
        case Token(logprob=Logprob() as logprob):
            body = ("t", event.id, _finite(logprob.value), [(id, _finite(value)) for id, value in logprob.top])
        case Finished():
            body = ("e", event.reason, event.prompt_tokens, event.completion_tokens)
        case Failed(error):
            body = ("f", error.status, str(error.code or ""), error.message[:300], error.retry_after)
        case _:
            raise ValueError("vectors do not travel")
    packed = _encode(body)
    return _LENGTH.pack(len(packed)) + packed


class _Began(msgspec.Struct, frozen=True, array_like=True, tag="s", gc=False):
    cached_tokens: Count


class _Made(msgspec.Struct, frozen=True, array_like=True, tag="t", gc=False):
    id: Id
    value: float | None = None
    top: Annotated[tuple[tuple[Id, float], ...], msgspec.Meta(max_length=20)] = ()


class _Ended(msgspec.Struct, frozen=True, array_like=True, tag="e", gc=False):
    reason: Literal["stop", "length", "cancelled"]
    prompt_tokens: Count
    completion_tokens: Count


class _Broke(msgspec.Struct, frozen=True, array_like=True, tag="f", gc=False):
    status: Annotated[int, msgspec.Meta(ge=400, le=599)]
    code: Short
    message: Annotated[str, msgspec.Meta(max_length=400)]
    retry_after: Annotated[int, msgspec.Meta(ge=0, le=86_400)] | None = None


_frame = msgspec.msgpack.Decoder(_Began | _Made | _Ended | _Broke)


class Reader:
    """Frames out of bytes cut anywhere. `piece` gives the bytes of a token id below `vocabulary`."""

    def __init__(self, vocabulary: int, piece: Callable[[int], bytes]) -> None:
        self._vocabulary = vocabulary
        self._piece = piece
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes; raises ValueError for what is none."""
        self._rest += data
        events: list[Event] = []
        at = 0
        while len(self._rest) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest, at)
            if length > MAX_FRAME:
                raise ValueError(f"a frame of {length} bytes")
            if len(self._rest) - at - _LENGTH.size < length:
                break
            at += _LENGTH.size
            if length:
                events.append(self._event(bytes(self._rest[at : at + length])))
            at += length
        del self._rest[:at]
        return events

    def _event(self, raw: bytes) -> Event:
        try:
            told = _frame.decode(raw)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise ValueError(f"a frame that says nothing ({error})") from error
        match told:
            case _Began():
                return Started(told.cached_tokens)
            case _Made():
                return self._token(told)
            case _Ended():
                return Finished(told.reason, told.prompt_tokens, told.completion_tokens)
        return Failed(error_of(told.status, told.message, told.retry_after))

    def _token(self, told: _Made) -> Token:
        ids = (told.id, *(id for id, _ in told.top))
        if max(ids) >= self._vocabulary:
            raise ValueError("a token that this model does not have")
        values = [value for _, value in told.top] if told.value is None else [told.value, *(v for _, v in told.top)]
        if not all(map(math.isfinite, values)):
            raise ValueError("a probability that is no number")
        logprob = None if told.value is None else Logprob(told.value, told.top)
        return Token(told.id, self._piece(told.id), logprob)


def error_of(status: int, message: str, retry_after: int | None = None) -> NodeError:
    """A neighbour's refusal, as ours; 529 is an overload, too."""
    kinds: dict[int, type[NodeError]] = {
        **{409: Conflict, 429: Overloaded, 500: EngineFailed, 503: Unavailable, 504: Expired, 529: Unavailable}
    }
    fallback = InvalidRequest if status < 500 else Unavailable
    shown = "".join(character if character.isprintable() else " " for character in message)
    return kinds.get(status, fallback)(shown or f"It answered {status}.", retry_after=retry_after)


def _finite(value: float) -> float:
    return value if math.isfinite(value) else -9999.0
