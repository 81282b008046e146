"""A QUIC stream at both ends."""

from __future__ import annotations

import socket

import pytest

from node.bench.live import quicends
from tests.bench.live.schemes import check, talk


async def test_every_reply_comes_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    check(*await talk(quicends, "QUIC stream", socket.SOCK_DGRAM, monkeypatch))
