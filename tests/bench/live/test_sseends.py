"""Server-sent events at both ends, with the congestion control that was asked for."""

from __future__ import annotations

import json
import socket

import pytest

from node.bench.live import sseends
from node.bench.live.sseends import SCHEMES, event, obstacle, socket_with
from tests.bench.live.schemes import check, talk

able = [scheme for scheme in SCHEMES if not obstacle(scheme)]


@pytest.mark.parametrize("scheme", able)
async def test_every_reply_comes_whole(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(*await talk(sseends, scheme, socket.SOCK_STREAM, monkeypatch))


@pytest.mark.parametrize("scheme", able)
def test_a_socket_has_its_own_congestion_control(scheme: str) -> None:
    with socket_with(SCHEMES[scheme]) as one:
        said = one.getsockopt(socket.IPPROTO_TCP, sseends._OPTION, 16)
    assert said.rstrip(b"\x00") == SCHEMES[scheme].encode()


def test_an_event_is_openais() -> None:
    data = event(3, b"hello")
    assert data.endswith(b"\n\n")
    told = json.loads(data.removeprefix(b"data: "))
    assert told["object"] == "chat.completion.chunk"
    assert told["choices"][0]["delta"] == {"content": "hello"}


def test_a_kernel_without_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sseends.SCHEMES, "SSE over bbr", "no_such_control")
    assert "no_such_control" in obstacle("SSE over bbr")
