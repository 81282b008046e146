"""A WebSocket's messages as full frames: what they are, and a real connection that speaks them."""

from __future__ import annotations

import json

import pytest
from aiohttp import WSMsgType

from node.link.frame import Flag, Kind, decode
from node.server import wsproto
from node.server.wsframes import encode
from node.server.wsproto import Interrupted, Pong, Token, Told


def frame_of(message: Told):  # type: ignore[no-untyped-def]
    data = encode(message)
    assert data is not None
    return decode(data)


def test_text_is_a_data_frame() -> None:
    told = frame_of(Token(id=3, seq=17, delta={"content": "Grüße"}))
    assert (told.kind, told.stream, told.seq, told.payload) == (Kind.DATA, 3, 17, "Grüße".encode())


@pytest.mark.parametrize(
    "message",
    [
        Token(id="name", seq=1, delta={"content": "x"}),
        Token(id=1, seq=1, delta={"text": "x"}),
        Token(id=1, seq=1, delta={"content": "x", "refusal": "y"}),
        Token(id=1, seq=1, delta={"content": "x"}, logprobs={"content": []}),
        Pong(t=1),
    ],
)
def test_all_else_is_json_in_a_ctrl_frame(message: Told) -> None:
    told = frame_of(message)
    assert told.kind is Kind.CTRL
    assert json.loads(told.payload) == json.loads(wsproto.encode(message, binary=False))


def test_an_interrupt_is_marked() -> None:
    told = frame_of(Interrupted(id=4, seq=2))
    assert (told.stream, told.flags) == (4, Flag.INTERRUPT)


def test_what_no_frame_can_hold_travels_as_json() -> None:
    assert encode(Pong(t="x" * 70_000)) is None
    assert frame_of(Token(id=1, seq=1, delta={"content": "x" * 65_535})).kind is Kind.DATA
    assert encode(Token(id=1, seq=1, delta={"content": "x" * 65_536})) is None


def test_the_kind_of_message_is_the_sockets() -> None:
    assert WSMsgType.BINARY != WSMsgType.TEXT
