"""What the path counts, and how it is told what to be."""

from __future__ import annotations

import os
import socket

import pytest

from node.bench.channel import Conditions
from node.bench.live.relay import Relay, Running, flow

UDP = bytes([0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2]) + bytes(
    [0x13, 0x89, 0xC0, 1, 0, 10]
)


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends that keep packets apart, as a TUN device does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.setblocking(False)
    theirs.settimeout(20)
    return ours, theirs


def test_a_packet_belongs_to_the_near_hosts_port() -> None:
    assert flow(UDP, from_near=True) == "udp 5001"
    assert flow(UDP, from_near=False) == "udp 49153"
    assert flow(UDP[:9] + b"\x06" + UDP[10:], from_near=True) == "tcp 5001"
    assert flow(UDP[:9] + b"\x01" + UDP[10:], from_near=True) == "icmp"
    assert flow(b"\x46" + UDP[1:20] + bytes(4) + UDP[20:], from_near=True) == "udp 5001", "a head with an option"


def test_packets_are_carried_both_ways_and_counted() -> None:
    (near, a), (far, b) = pair(), pair()
    relay = Relay((near.fileno(), far.fileno()), Conditions(rtt=0.01), 1)
    a.send(UDP)
    came: list[bytes] = []

    def stopped() -> bool:
        b.setblocking(False)
        try:
            came.append(b.recv(2000))
        except BlockingIOError:
            return False
        return True

    relay.carry(stopped)
    assert came == [UDP]
    assert relay.carried.traffic == {"udp 5001": (1, len(UDP))}
    for one in (near, a, far, b):
        one.close()


def test_what_is_no_ipv4_is_left_out() -> None:
    (near, a), (far, b) = pair(), pair()
    relay = Relay((near.fileno(), far.fileno()), Conditions(rtt=0.0), 1)
    a.send(b"\x60" + bytes(40))
    rounds = iter(range(3))
    relay.carry(lambda: next(rounds, None) is None)
    assert relay.carried.traffic == {}
    b.setblocking(False)
    with pytest.raises(BlockingIOError):
        b.recv(100)
    for one in (near, a, far, b):
        one.close()


def test_a_process_of_its_own_tells_what_it_carried_when_it_is_stopped() -> None:
    (near, a), (far, b) = pair(), pair()
    running = Running((near.fileno(), far.fileno()), Conditions(rtt=0.02, loss=0.0), 3)
    try:
        a.send(UDP)
        assert b.recv(2000) == UDP
        b.send(UDP)
        assert a.recv(2000) == UDP
    finally:
        carried = running.stop()
    assert carried.traffic == {"udp 5001": (1, len(UDP)), "udp 49153": (1, len(UDP))}
    assert carried.bad == []
    assert os.fstat(near.fileno()), "the devices stay ours"
    for one in (near, a, far, b):
        one.close()
