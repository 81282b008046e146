"""The node's own link at both ends."""

from __future__ import annotations

import socket

import pytest

from node.bench.live import linkends
from tests.bench.live.schemes import check, talk


async def test_every_reply_comes_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    check(*await talk(linkends, "link", socket.SOCK_DGRAM, monkeypatch))
