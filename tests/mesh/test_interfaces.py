"""Interfaces: which there are, and being told when they change."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from pathlib import Path

import pytest

from node.mesh import interfaces
from node.mesh.interfaces import Interface, Watch, present
from tests.mesh.nodes import until
from tests.support.namespaces import Wire, skip_unless_possible


def test_loopback_is_none_of_them() -> None:
    for interface in present():
        assert not any(address.startswith("127.") for address in interface.ipv4)
        assert "::1" not in interface.ipv6


def test_only_the_named_ones() -> None:
    assert present(["no-such-interface"]) == ()


def test_addresses_that_cannot_be_used_yet_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "if_inet6"
    monkeypatch.setattr(interfaces, "_IPV6_TABLE", table)
    assert interfaces._unusable() == set()
    table.write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "fe800000000000000000000000000001 02 40 20 80     eth0\n"
        "fe800000000000000000000000000002 02 40 20 c0     eth0\n"
        "fe800000000000000000000000000003 0a 40 20 c8     eth1\n"
    )
    asked, taken = ipaddress.IPv6Address("fe80::2"), ipaddress.IPv6Address("fe80::3")
    assert interfaces._unusable() == {(asked, 2), (taken, 10)}


def test_an_address_is_there_once_nobody_else_has_it() -> None:
    skip_unless_possible()
    with Wire(1, prefix="opj", ipv4=False) as wire:
        changes: list[tuple[Interface, ...]] = wire.on(1, lambda: asyncio.run(_watched(wire)))
        assert [change for change in changes if any(one.up and one.ipv6 for one in change)]


def test_one_that_comes_goes_and_changes() -> None:
    skip_unless_possible()
    with Wire(1, prefix="opi") as wire:
        while not (found := wire.on(1, present)[0]).ipv6:
            time.sleep(0.05)  # the kernel asks first whether somebody else has the address
        assert (found.name, found.ipv4, found.up) == ("eth0", ("10.91.0.1",), True)
        assert found.ipv6[0].startswith("fe80::")
        changes: list[tuple[Interface, ...]] = wire.on(1, lambda: asyncio.run(_watched(wire)))
        assert any(not any(interface.up for interface in change) for change in changes)
        (again,) = changes[-1]
        assert again.up
        assert again.ipv6 == found.ipv6


async def _watched(wire: Wire) -> list[tuple[Interface, ...]]:
    """What a watch says while the interface goes down and comes up again."""
    changes: list[tuple[Interface, ...]] = []
    watch = Watch([], changes.append)
    watch.start()
    await asyncio.to_thread(wire.plug, 1, False)
    await until(lambda: bool(changes) and not any(interface.up for interface in changes[-1]))
    await asyncio.to_thread(wire.plug, 1, True)
    await until(lambda: any(interface.up and interface.ipv6 for interface in changes[-1]))
    await watch.stop()
    return changes


async def test_a_watch_that_nothing_happens_to() -> None:
    changes: list[tuple[Interface, ...]] = []
    watch = Watch(["no-such-interface"], changes.append)
    watch.start()
    if watch._socket is not None:
        assert watch._socket.family == socket.AF_NETLINK
    await asyncio.sleep(0.05)
    await watch.stop()
    assert changes == []
    await Watch([], changes.append).stop()


@pytest.mark.parametrize("up", [True, False])
def test_an_interface_is_a_value(up: bool) -> None:
    assert Interface("eth0", 2, (), (), up) == Interface("eth0", 2, (), (), up)
