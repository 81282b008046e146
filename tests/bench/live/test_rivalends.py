"""What others do over UDP, at both ends."""

from __future__ import annotations

import socket

import pytest

from node.bench.live import rivalends
from tests.bench.live.schemes import check, talk


@pytest.mark.parametrize("scheme", rivalends.SCHEMES)
async def test_every_reply_comes_whole(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(*await talk(rivalends, scheme, socket.SOCK_DGRAM, monkeypatch))
