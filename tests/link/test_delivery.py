"""What acknowledgements say of a path's capacity."""

from __future__ import annotations

import pytest

from node.link.delivery import MEMORY_S, Delivery


def deliver(delivery: Delivery, acks: list[tuple[float, float]], size: int = 100) -> None:
    """Packets of (when sent, when acknowledged), in order."""
    flying = []
    for sent, answered in acks:
        while flying and flying[0][0] <= sent:
            when, packet = flying.pop(0)
            delivery.arrived(packet, when)
        flying.append((answered, delivery.send(size, sent, idle=not flying)))
    for when, packet in flying:
        delivery.arrived(packet, when)


def test_a_row_of_packets_shows_the_rate_of_its_bottleneck() -> None:
    delivery = Delivery()
    deliver(delivery, [(0.05 * i, 0.5 + 0.1 * i) for i in range(20)])
    assert delivery.capacity(3.0) == pytest.approx(1000.0, rel=0.1)
    assert delivery.capacity(3.0 + MEMORY_S) == 0.0


def test_acknowledgements_in_a_bunch_prove_nothing() -> None:
    delivery = Delivery()
    deliver(delivery, [(0.1 * i, 0.5 + 0.1 * (i // 5 * 5 + 5)) for i in range(40)])
    assert delivery.capacity(5.0) < 1300.0


def test_one_packet_at_a_time_shows_no_capacity() -> None:
    delivery = Delivery()
    deliver(delivery, [(float(i), i + 0.5) for i in range(10)])
    assert delivery.capacity(10.0) == 0.0
