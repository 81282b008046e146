"""WebSocket messages as chunks, and what is sent; the specification is in `server/wsproto.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node import errors, frames
from node.chunks import BrokenStream, Chunk, ClientError, Cursor, Delta
from node.errors import NodeError


def take(reading: frames.Reading, **message: Any) -> Chunk | None:
    return reading.take(json.dumps(message))


def test_what_is_asked() -> None:
    body = {"messages": [], "max_tokens": 3}
    assert json.loads(frames.request(body, resumable=True, key="k")) == {
        **{"type": "request", "id": 0, "route": "chat", "body": body},
        **{"resumable": True, "key": "k"},
    }
    told = {"type": "resume", "id": 0, "stream": "chatcmpl-1", "from": 7, "crc": "00c0ffee"}
    assert json.loads(frames.resume("chatcmpl-1", 7, "00c0ffee")) == told


def test_an_answer_from_its_acceptance_to_its_end() -> None:
    reading = frames.Reading()
    assert take(reading, type="hello", level=3, binary=False, heartbeat_s=15.0) is None
    assert take(reading, type="accepted", id=0, stream="c1", resumable=True) is None
    assert (reading.stream, reading.ended) == ("c1", False)
    chunk = take(reading, type="token", id=0, seq=4, delta={"content": "żó"}, logprobs={"content": []})
    assert chunk is not None
    assert (chunk.choices[0].delta, chunk.outpost) == (Delta("żó"), Cursor(4))
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    chunk = take(reading, type="finish", id=0, reason="stop", seq=4, delta={"content": "<"}, usage=usage)
    assert chunk is not None
    assert (chunk.choices[0].finish_reason, chunk.choices[0].delta.content, chunk.id) == ("stop", "<", "c1")
    assert chunk.usage is not None
    assert (chunk.usage.completion_tokens, chunk.outpost) == (2, None)
    assert reading.ended


def test_an_end_without_anything_else() -> None:
    chunk = take(frames.Reading(), type="finish", id=0, reason="length", seq=-1)
    assert chunk is not None
    assert (chunk.choices[0].finish_reason, chunk.choices[0].delta, chunk.usage) == ("length", Delta(), None)


def test_a_rewind() -> None:
    assert take(frames.Reading(), type="rewind", id=0, seq=9) == Chunk(outpost=Cursor(9, rewind=True))


@pytest.mark.parametrize("more", [{"type": "pong", "t": 1}, {"type": "hello"}, {"type": "of another time", "seq": 3}])
def test_what_says_nothing_of_the_answer(more: dict[str, Any]) -> None:
    assert take(frames.Reading(), **more) is None


@pytest.mark.parametrize(
    ("status", "said", "kind", "wait"),
    [
        (404, {"message": "m", "code": "not_found"}, errors.NotFound, None),
        (410, {"message": "m", "code": "evicted"}, errors.Gone, None),
        (403, {"message": "m", "code": "forbidden"}, errors.Forbidden, None),
        (409, {"message": "m", "code": "conflict"}, errors.Conflict, None),
        (429, {"message": "m", "code": "queue_full"}, errors.Overloaded, 2.2),
        (503, {"message": "m", "code": "unavailable"}, errors.Unavailable, 0.2),
        (400, {"message": "m", "type": "invalid_request_error", "param": "id"}, errors.InvalidRequest, None),
    ],
)
def test_an_error_becomes_its_class(
    status: int, said: dict[str, Any], kind: type[NodeError], wait: float | None
) -> None:
    message = {"type": "error", "id": 0, "error": said, "status": status}
    with pytest.raises(kind, match="m") as caught:
        take(frames.Reading(), **message, **({} if wait is None else {"retry_after": wait}))
    assert type(caught.value) is kind
    assert caught.value.retry_after == (None if wait is None else max(1, round(wait)))


def test_an_error_without_words() -> None:
    with pytest.raises(NodeError, match="answered 500"):
        take(frames.Reading(), type="error", id=None)


def test_an_interruption_by_somebody_else() -> None:
    with pytest.raises(ClientError, match="stopped") as caught:
        take(frames.Reading(), type="interrupted", id=0, seq=3)
    assert not caught.value.retryable


@given(text=st.one_of(st.text(), st.recursive(st.none() | st.text(), st.lists).map(json.dumps)))
def test_no_message_crashes_the_reader(text: str) -> None:
    try:
        assert frames.Reading().take(text) is None
    except BrokenStream:
        pass
