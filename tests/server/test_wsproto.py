"""The messages of /v1/ws: one table through both encodings, and everything that is no message."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import Overloaded
from node.server import replies, wsproto
from node.server.wsproto import Hello, Interrupt, Ping, Request, Resume, Wrong

BODY = {"messages": [{"role": "user", "content": "Grüße 🌍"}], "max_tokens": 3}
SENT: list[tuple[dict[str, Any], list[Any]]] = [
    ({"type": "request", "id": "a", "route": "chat", "body": BODY}, [1, "a", "chat", BODY]),
    (
        {"type": "request", "id": 7, "route": "text", "body": BODY, "resumable": True, "key": "k"},
        [1, 7, "text", BODY, True, "k"],
    ),
    ({"type": "resume", "id": "a", "stream": "cmpl-1", "from": 12}, [2, "a", "cmpl-1", 12]),
    ({"type": "resume", "id": "a", "stream": "cmpl-1"}, [2, "a", "cmpl-1"]),
    ({"type": "interrupt", "id": "x" * 64}, [3, "x" * 64]),
    ({"type": "ping", "t": 1.5}, [4, 1.5]),
    ({"type": "ping"}, [4]),
    ({"type": "hello", "level": 2, "binary": True, "heartbeat_s": 0.08}, [5, 2, True, 0.08]),
    ({"type": "hello", "heartbeat_s": 600}, [5, None, None, 600]),
]
WRONG: list[tuple[Any, Any]] = [  # what was sent, and the id that can be told
    ({"id": "a"}, "a"),
    ({"type": "later", "id": "a"}, "a"),
    ({"type": "finish", "id": "a"}, "a"),
    ({"type": "request", "id": "a", "route": "chat"}, "a"),
    ({"type": "request", "id": "a", "route": "embeddings", "body": {}}, "a"),
    ({"type": "request", "id": "", "route": "chat", "body": {}}, None),
    ({"type": "request", "id": "x" * 65, "route": "chat", "body": {}}, None),
    ({"type": "request", "id": True, "route": "chat", "body": {}}, None),
    ({"type": "request", "id": -1, "route": "chat", "body": {}}, None),
    ({"type": "request", "id": 1 << 53, "route": "chat", "body": {}}, None),
    ({"type": "request", "id": 1, "route": "chat", "body": {}, "resumable": 1}, 1),
    ({"type": "request", "id": 1, "route": "chat", "body": {}, "more": 1}, 1),
    ({"type": "resume", "id": 1, "stream": "s", "from": -1}, 1),
    ({"type": "resume", "id": 1, "stream": "s", "from": 10**30}, 1),
    ({"type": "resume", "id": 1, "stream": "s", "from": 1.5}, 1),
    ({"type": "resume", "id": 1, "stream": "s" * 65}, 1),
    ({"type": "ping", "t": []}, None),
    ({"type": "ping", "t": "x" * 65}, None),
    ({"type": "hello", "level": 4}, None),
    ({"type": "hello", "heartbeat_s": 0.07}, None),
    ({"type": "hello", "heartbeat_s": 601}, None),
    ([], None),
    ("text", None),
    (None, None),
]


def same(one: wsproto.Sent, other: wsproto.Sent) -> bool:
    """Equal, but for the spelling of a body."""
    if isinstance(one, Request) and isinstance(other, Request):
        bodies = [json.loads(bytes(message.body)) for message in (one, other)]
        rest = [(message.id, message.route, message.resumable, message.key) for message in (one, other)]
        return bodies[0] == bodies[1] and rest[0] == rest[1]
    return one == other


@pytest.mark.parametrize(("message", "array"), SENT)
def test_both_encodings_say_the_same(message: dict[str, Any], array: list[Any]) -> None:
    from_text = wsproto.decode(json.dumps(message))
    assert same(from_text, wsproto.decode(msgspec.msgpack.encode(array)))
    kinds = {"request": Request, "resume": Resume, "interrupt": Interrupt, "ping": Ping, "hello": Hello}
    assert type(from_text) is kinds[message["type"]]


def test_a_body_stays_as_it_was_sent() -> None:
    text = '{"type":"request","id":"a","route":"chat","body": {"b" : 1,\n"a":[ ]} }'
    message = wsproto.decode(text)
    assert isinstance(message, Request)
    assert bytes(message.body) == b'{"b" : 1,\n"a":[ ]}', "or an Idempotency-Key would not know it again"


@pytest.mark.parametrize(("message", "ref"), WRONG)
def test_what_is_wrong_is_said_with_the_id_if_there_is_one(message: Any, ref: Any) -> None:
    with pytest.raises(Wrong) as caught:
        wsproto.decode(json.dumps(message))
    assert caught.value.ref == ref
    assert caught.value.status == 400
    assert caught.value.code == "malformed_message"


@pytest.mark.parametrize(
    "data",
    [
        "",
        "{",
        '{"type":"ping"}}',
        "[" * 100_000,
        '{"type":"request","id":"a","route":"chat","body":' + "[" * 100_000,
        b"",
        b"\xc1",
        b"\x90",
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        msgspec.msgpack.encode([0]),
        msgspec.msgpack.encode([True, "a"]),
        msgspec.msgpack.encode(["ping"]),
        msgspec.msgpack.encode([18, "a", 1, "text"]),
        msgspec.msgpack.encode([4, 1, 2]),
        msgspec.msgpack.encode({"type": "ping"}),
        msgspec.msgpack.encode([1, "a", "chat", {(1, 2): 3}]),
        msgspec.msgpack.encode([4, msgspec.msgpack.Ext(1, b"a")]),
    ],
)
def test_what_is_no_message_is_said_briefly(data: str | bytes) -> None:
    with pytest.raises(Wrong) as caught:
        wsproto.decode(data)
    assert len(caught.value.message) <= 300


@given(st.one_of(st.text(), st.binary()))
def test_any_bytes_are_a_message_or_wrong(data: str | bytes) -> None:
    with contextlib.suppress(Wrong):
        wsproto.decode(data)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
values = st.recursive(scalars, lambda some: st.lists(some, max_size=3) | st.dictionaries(scalars, some, max_size=3))


@given(st.integers(0, 8), st.lists(values, max_size=6))
def test_any_array_is_a_message_or_wrong(number: int, members: list[Any]) -> None:
    try:
        data = msgspec.msgpack.encode([number, *members])
    except OverflowError:
        return
    with contextlib.suppress(Wrong):
        wsproto.decode(data)


def test_messages_from_the_node() -> None:
    token = wsproto.Token(id="a", seq=3, delta={"content": "é"})
    usage = {"total_tokens": 3}
    table: list[tuple[wsproto.Told, dict[str, Any], list[Any]]] = [
        (token, {"type": "token", "id": "a", "seq": 3, "delta": {"content": "é"}}, [18, "a", 3, "é"]),
        (
            wsproto.Token(id=1, seq=0, delta={"text": "x"}, logprobs={"tokens": ["x"]}),
            {"type": "token", "id": 1, "seq": 0, "delta": {"text": "x"}, "logprobs": {"tokens": ["x"]}},
            [18, 1, 0, "x", {"tokens": ["x"]}],
        ),
        (
            wsproto.Token(id=1, seq=0, delta={"tool_calls": [{"index": 0}]}),
            {"type": "token", "id": 1, "seq": 0, "delta": {"tool_calls": [{"index": 0}]}},
            [18, 1, 0, {"tool_calls": [{"index": 0}]}],
        ),
        (
            wsproto.Finish(id=1, reason="stop", seq=-1, usage=usage),
            {"type": "finish", "id": 1, "reason": "stop", "seq": -1, "usage": usage},
            [19, 1, "stop", -1, None, usage],
        ),
        (wsproto.Interrupted(id=1, seq=4), {"type": "interrupted", "id": 1, "seq": 4}, [20, 1, 4]),
        (wsproto.Rewind(id=1, seq=4), {"type": "rewind", "id": 1, "seq": 4}, [21, 1, 4]),
        (wsproto.Pong(t=None), {"type": "pong", "t": None}, [23]),
        (wsproto.LevelChange(level=2, reason="r"), {"type": "level", "level": 2, "reason": "r"}, [24, 2, "r"]),
        (
            wsproto.Accepted(id=1, stream="s", resumable=False, priority="critical"),
            {"type": "accepted", "id": 1, "stream": "s", "resumable": False, "priority": "critical"},
            [17, 1, "s", False, "critical"],
        ),
    ]
    for message, as_json, as_array in table:
        assert json.loads(wsproto.encode(message, binary=False)) == as_json
        assert msgspec.msgpack.decode(wsproto.encode(message, binary=True)) == as_array


def test_an_error_says_what_http_would() -> None:
    error = Overloaded("Full.", hint="Wait.", retry_after=2)
    told = json.loads(wsproto.encode(wsproto.problem(error, None, replies.error_body(error)), binary=False))
    assert told["id"] is None, "null is said, not left out"
    assert told["status"] == 429
    assert told["retry_after"] == 2
    assert told["error"] == {"message": "Full. Wait.", "type": "rate_limit_error", "param": None, "code": "queue_full"}


def event(choice: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({"id": "x", "choices": [{"index": 0, **choice}]}).encode() + b"\n\n"


def test_the_events_of_one_piece_become_one_part() -> None:
    start = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": "{}"}}
    events = (
        event({"delta": {"content": "so "}, "logprobs": {"content": [1]}})
        + event({"delta": {"content": "be it"}, "logprobs": None})
        + event({"delta": {"tool_calls": [start]}})
        + event({"delta": {"tool_calls": [more]}, "finish_reason": "tool_calls"})
        + b'data: {"choices":[],"usage":{}}\n\ndata: [DONE]\n\n'
    )
    part = wsproto.part(events, 3)
    assert part.delta == {"content": "so be it", "tool_calls": [start, more]}
    assert part.logprobs == {"content": [1]}
    assert part.reason == "tool_calls"
    less = wsproto.part(events, 2)
    assert less.delta == {"content": "so be it"}
    assert less.logprobs is None
    assert wsproto.part(event({"text": "a"}) + event({"text": "b", "finish_reason": "stop"}), 1).delta == {"text": "ab"}
    assert wsproto.part(b"", 3).delta == {}


def test_every_message_has_one_number() -> None:
    kinds = list(wsproto.NUMBERS.values())
    assert len(kinds) == len(set(kinds))
    documented = wsproto.__doc__ or ""
    for kind in kinds:
        assert f'"type":"{kind.__struct_config__.tag}"' in documented
