"""Floods are bounded and look as they should; under short ones a real node goes on answering."""

from __future__ import annotations

import random
import socket
from itertools import islice

import msgspec
import pytest

from node.bench.linkflood import (
    CLIENTS,
    FLOODS,
    LIVE_MS,
    MOST_S,
    Held,
    Order,
    bad_tags,
    figures,
    garbage,
    main,
    send,
    told_of,
)
from node.link import packet


@pytest.fixture
def port() -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        yield listener.getsockname()[1]


def test_a_flood_ends_whatever_is_asked_for(port: int) -> None:
    seconds = iter(range(1000))
    assert send(Order(port, 1e9, [b"x"]), lambda: float(next(seconds))) > 0
    assert next(seconds) <= MOST_S + 2


def test_a_flood_keeps_to_its_rate(port: int) -> None:
    passed = iter(i / 100 for i in range(1000))
    sent = send(Order(port, 1.0, [b"x"], rate=1000), lambda: next(passed))
    assert 900 <= sent <= 1100


def test_what_is_sent_is_what_was_ordered() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(10)
        order = Order(listener.getsockname()[1], 0.02, [b"one", b"two", b"three"])
        assert main(msgspec.msgpack.encode(order)) >= 3
        assert [listener.recv(100) for _ in range(4)] == [b"one", b"two", b"three", b"one"]


def test_garbage_is_short_and_never_too_long() -> None:
    sizes = [len(one) for one in islice(garbage(random.Random(1)), 2000)]
    assert 1 <= min(sizes)
    assert max(sizes) <= packet.MAX_DATAGRAM
    assert sum(sizes) / 2000 < 120


def test_bad_tags_look_like_the_link() -> None:
    for one in islice(bad_tags(random.Random(1), 77), 200):
        head = packet.read_head(one)
        assert head is not None
        assert head[0] == 77
        assert len(one) > packet.HEAD.size + 16


def test_what_a_flood_comes_to() -> None:
    fine = Held("garbage", CLIENTS, [0.001] * 100, 4096, 1000, 900, 1.0)
    assert [one.met for one in told_of(fine)] == [True, True, True]
    assert "1,000 datagrams/s sent, 900 read" in next(told_of(fine)).detail
    bad = Held("garbage", CLIENTS - 1, [2 * LIVE_MS / 1000] * 100, 1 << 30, 1000, 900, 1.0)
    assert [one.met for one in told_of(bad)] == [False, False, False]


async def test_a_real_node_goes_on_answering() -> None:
    told: list[str] = []
    found = {figure.name: figure for figure in await figures(0.3, told.append)}
    assert len(told) == len(FLOODS) + 1
    for kind in FLOODS:
        assert found[f"{kind}: answers exact"].met
        assert found[f"{kind}: memory grown"].met
        assert not found[f"{kind}: answers exact"].detail.startswith("0 ")
    amplified = found["stolen datagrams: bytes back / bytes"]
    assert amplified.met
    assert amplified.value > 0.1, "the node answered the stolen datagram"
