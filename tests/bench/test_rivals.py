"""What others do: exact over any loss, and as good or bad as is known of them."""

from __future__ import annotations

import math
import random

import pytest

from node.bench.rivals import EloquentListener, EloquentTalker, Listener, Talker, XorListener, XorTalker, unxor, xor

WORDS = [b"word%d" % i for i in range(30)]
PAIRS = [
    (EloquentTalker, EloquentListener),
    (lambda: EloquentTalker(None), EloquentListener),
    (XorTalker, XorListener),
]


def carry(talker: Talker, listener: Listener, rng: random.Random, loss: float) -> list[bytes]:
    """All words, one every 20 ms, over a path of 10 ms; gives what came."""
    came: list[bytes] = []
    wire: list[tuple[float, int, bool, bytes]] = []
    now, count, said = 0.0, 0, 0

    def put(packets: list[bytes], forth: bool) -> None:
        nonlocal count
        for packet in packets:
            count += 1
            if rng.random() >= loss:
                wire.append((now + 0.01, count, forth, packet))

    while now < 60 and not (said == len(WORDS) and talker.idle()):
        if said < len(WORDS) and now >= said * 0.02:
            put(talker.push(WORDS[said], now), True)
            said += 1
        for one in sorted(wire):
            if one[0] > now:
                break
            wire.remove(one)
            if one[2]:
                fresh, answers = listener.receive(one[3])
                came += fresh
                put(answers, False)
            else:
                put(talker.receive(one[3], now), True)
        if talker.timer() <= now:
            put(talker.expire(now), True)
        now += 0.001
    return came


@pytest.mark.parametrize("loss", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("pair", range(len(PAIRS)))
def test_everything_comes_once_and_in_order(pair: int, loss: float) -> None:
    talker, listener = PAIRS[pair]
    assert carry(talker(), listener(), random.Random(pair), loss) == WORDS


def test_eloquents_packet_holds_all_that_is_unacknowledged() -> None:
    talker, listener = EloquentTalker(), EloquentListener()
    talker.push(b"lost", 0.0)
    (second,) = talker.push(b"came", 0.02)
    fresh, answers = listener.receive(second)
    assert fresh == [b"lost", b"came"]
    assert not talker.idle()
    assert talker.timer() == pytest.approx(0.22)
    talker.receive(answers[0], 0.1)
    assert talker.idle()
    assert talker.timer() == math.inf
    assert talker.expire(9.0) == []


def test_a_timer_of_its_own_follows_the_round_trip() -> None:
    talker, listener = EloquentTalker(None), EloquentListener()
    for i in range(20):
        (packet,) = talker.push(b"x", float(i))
        talker.receive(listener.receive(packet)[1][0], i + 0.05)
    talker.push(b"x", 20.0)
    first = talker.timer() - 20.0
    assert 0.06 < first < 0.12
    talker.expire(20.0 + first)
    assert talker.timer() - 20.0 - first == pytest.approx(1.5 * first), "and grows"


def test_a_parity_packet_repairs_one_loss_of_its_group() -> None:
    talker, listener = XorTalker(), XorListener()
    packets = [one for word in (b"a", b"bcd", b"") for one in talker.push(word, 0.0)]
    assert len(packets) == 4
    for lost in range(3):
        listener = XorListener()
        came = [listener.receive(packet)[0] for i, packet in enumerate(packets) if i != lost]
        assert [chunk for fresh in came for chunk in fresh] == [b"a", b"bcd", b""]


def test_two_losses_of_a_group_wait_for_another_packet() -> None:
    talker, listener = XorTalker(), XorListener()
    packets = [one for word in (b"a", b"b", b"c") for one in talker.push(word, 0.0)]
    assert listener.receive(packets[3])[0] == []
    assert listener.receive(packets[0])[0] == [b"a"]
    (again, *_) = talker.expire(5.0)
    assert listener.receive(again)[0] == [], "it is the first, which came"
    assert listener.receive(packets[1])[0] == [b"b", b"c"]


def test_what_three_later_packets_passed_is_sent_again() -> None:
    talker, listener = XorTalker(), XorListener()
    lost = talker.push(b"0", 0.0)
    again: list[bytes] = []
    for i in range(1, 5):
        for packet in talker.push(b"%d" % i, 0.01 * i)[:1]:  # parity packets are lost
            for answer in listener.receive(packet)[1]:
                again += talker.receive(answer, 0.01 * i + 0.005)
    assert lost[0][9:] == again[0][9:], "the same chunk, as another packet"
    assert listener.receive(again[0])[0] == [b"0", b"1", b"2", b"3", b"4"]


def test_exclusive_or_keeps_lengths() -> None:
    chunks = [b"", b"abc", b"\x00\x00"]
    for lost in range(3):
        others = [chunk for i, chunk in enumerate(chunks) if i != lost]
        assert unxor(xor(chunks), others) == chunks[lost]


@pytest.mark.parametrize("data", [b"", b"\x00" * 10, b"\x00" * 14 + b"\x05" + b"\x00" * 5 + b"\xff"])
def test_garbage_is_nothing(data: bytes) -> None:
    for talker, listener in PAIRS:
        assert listener().receive(data)[0] == []
        assert talker().receive(data, 0.0) == []
