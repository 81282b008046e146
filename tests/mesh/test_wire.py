"""Requests and events between nodes, and everything that may be wrong with them."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import Conflict, EngineFailed, InvalidRequest, NodeError, Overloaded, RateLimited, Unavailable
from node.generation import (
    Caller,
    Constraint,
    Embedded,
    Event,
    Failed,
    Finished,
    Logprob,
    Request,
    Sampling,
    Started,
    Token,
)
from node.mesh import wire

REQUEST = Request(
    "chatcmpl-1",
    (1, 2, 3),
    50,
    sampling=Sampling(temperature=0.5, top_k=7, seed=99, logit_bias=((5, -100.0),)),
    stop=("secret stop",),
    constraint=Constraint("regex", "a+"),
    logprobs=2,
    ignore_eos=True,
    continued=(4, 5),
    caller=Caller("tenant", "user", "session"),
    level="interactive",
    ttl_s=3.0,
)


def piece(id: int) -> bytes:
    return bytes([id])


def test_a_request_arrives_as_it_was_but_for_who_asks() -> None:
    raw = wire.errand_of(REQUEST, "digest")
    asked = wire.errand(raw)
    assert asked.model_digest == "digest"
    there = wire.request_of(asked, "fresh", 256, 4096)
    assert there == replace(
        REQUEST, id="chatcmpl-1~fresh", stop=(), caller=Caller(wire.tenant_there("tenant"), "", "session"), hops=1
    ), "stop strings and the user stay at home"
    assert wire.request_of(wire.errand(wire.errand_of(replace(REQUEST, caller=Caller()), "d")), "f", 256, 4096)
    assert b"secret stop" not in raw
    assert b"user" not in raw


def test_tenants_are_told_apart_without_their_names() -> None:
    assert wire.tenant_there("") == "mesh"
    assert len({wire.tenant_there("a"), wire.tenant_there("b"), "mesh"}) == 3
    assert "acme" not in wire.tenant_there("acme")


def test_each_node_adds_a_hop() -> None:
    asked = wire.errand(wire.errand_of(replace(REQUEST, hops=3), "d"))
    assert wire.request_of(asked, "x", 256, 4096).hops == 4


WRONG = [
    {"prompt": []},
    {"prompt": [-1]},
    {"prompt": [1 << 24]},
    {"prompt": "text"},
    {"max_tokens": 0},
    {"max_tokens": 1 << 21},
    {"hops": 0},
    {"hops": 17},
    {"level": "royal"},
    {"ttl_s": -1},
    {"ttl_s": math.nan},
    {"logprobs": 21},
    {"id": "x" * 129},
    {"id": ""},
    {"id": "a~b"},
    {"id": "a\nb"},
    {"tenant": "x" * 129},
    {"rule": {"kind": "sql", "text": ""}},
    {"sampling": {}},
]


@pytest.mark.parametrize("change", WRONG)
def test_what_is_out_of_bounds_is_refused(change: dict[str, object]) -> None:
    sent = msgspec.msgpack.decode(wire.errand_of(REQUEST, "d"))
    with pytest.raises(InvalidRequest, match="no errand"):
        wire.errand(msgspec.msgpack.encode({**sent, **change}))


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"<html>", b"\x81\xa2id\xa1x", b"\x91" * 5000, b"\xdd\xff\xff\xff\xff"])
def test_junk_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        wire.errand(raw)


def test_too_many_bytes_are_refused_unread() -> None:
    with pytest.raises(InvalidRequest, match="at most"):
        wire.errand(b"\0" * (wire.MAX_BYTES + 1))


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": (256,)},
        {"continued": (300,)},
        {"sampling": Sampling(logit_bias=((256, 1.0),))},
        {"max_tokens": 4094},
        {"max_tokens": 2},
    ],
)
def test_what_cannot_run_here_is_refused(change: dict[str, object]) -> None:
    asked = wire.errand(wire.errand_of(replace(REQUEST, **change), "d"))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        wire.request_of(asked, "x", 256, 4096)


EVENTS: list[Event] = [
    Started(17),
    Token(65, b"A"),
    Token(66, b"B", Logprob(-0.5, ((66, -0.5), (67, -1.5)))),
    Token(67, b"C", Logprob(-0.25)),
    Finished("length", 3, 50),
    Finished("stop", 0, 0),
]


def test_events_arrive_however_the_bytes_are_cut() -> None:
    raw = wire.ALIVE.join(map(wire.frame, EVENTS)) + wire.ALIVE
    assert wire.Reader(256, piece).feed(raw) == EVENTS
    reader = wire.Reader(256, piece)
    assert [event for byte in raw for event in reader.feed(bytes([byte]))] == EVENTS


@given(st.lists(st.integers(0, 255), max_size=30), st.integers(1, 7))
def test_tokens_are_what_the_vocabulary_makes_of_their_ids(ids: list[int], cut: int) -> None:
    raw = b"".join(wire.frame(Token(id, b"a lie")) for id in ids)
    reader = wire.Reader(256, piece)
    told = [event for at in range(0, len(raw), cut) for event in reader.feed(raw[at : at + cut])]
    assert told == [Token(id, bytes([id])) for id in ids]


ERRORS = [
    (Overloaded("full", retry_after=7), Overloaded),
    (RateLimited("slow", retry_after=3, headers={}), Overloaded),
    (Unavailable("stopping", retry_after=5), Unavailable),
    (EngineFailed("broke"), EngineFailed),
    (Conflict("other model"), Conflict),
    (InvalidRequest("no"), InvalidRequest),
]


@pytest.mark.parametrize(("error", "kind"), ERRORS)
def test_errors_arrive_as_what_they_are(error: NodeError, kind: type[NodeError]) -> None:
    (event,) = wire.Reader(256, piece).feed(wire.frame(Failed(error)))
    assert isinstance(event, Failed)
    assert type(event.error) is kind
    assert event.error.message == error.message
    assert event.error.retry_after == error.retry_after


def test_529_is_an_overload_and_control_characters_are_not_shown() -> None:
    assert type(wire.error_of(529, "")) is Unavailable
    assert wire.error_of(500, "a\x1b[31mb\n").message == "a [31mb "
    assert wire.error_of(503, "").message == "It answered 503."


def framed(body: object) -> bytes:
    packed = msgspec.msgpack.encode(body)
    return struct.pack(">H", len(packed)) + packed


GARBAGE = [
    struct.pack(">H", wire.MAX_FRAME + 1),
    framed(["t", 256]),
    framed(["t", -1]),
    framed(["t"]),
    framed(["t", 1, math.nan]),
    framed(["t", 1, -1.0, [[1, math.inf]]]),
    framed(["t", 1, -1.0, [[1, -1.0]] * 21]),
    framed(["t", 1, -1.0, [[999, -1.0]]]),
    framed(["e", "bored", 1, 1]),
    framed(["f", 200, "", ""]),
    framed(["f", 500, "", "x" * 401]),
    framed(["x"]),
    framed({"t": 1}),
    framed("text"),
    b"\0\x03abc",
]


@pytest.mark.parametrize("raw", GARBAGE)
def test_garbage_is_an_error_and_never_an_event(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"frame|token|probability"):
        wire.Reader(256, piece).feed(raw)


def test_a_peer_that_never_ends_a_frame_costs_no_more_than_a_frame() -> None:
    reader = wire.Reader(256, piece)
    assert reader.feed(struct.pack(">H", wire.MAX_FRAME)) == []
    with pytest.raises(ValueError, match="frame"):
        reader.feed(b"\xc1" * wire.MAX_FRAME)


def test_vectors_do_not_travel() -> None:
    with pytest.raises(ValueError, match="vectors"):
        wire.frame(Embedded((1.0,), 1))
