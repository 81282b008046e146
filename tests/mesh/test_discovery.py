"""Announcements: what this node says of itself, and what is made of what others say."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from zeroconf.asyncio import AsyncServiceInfo

from node.mesh import discovery as module
from node.mesh.discovery import SERVICE, Discovery, announcement, understood
from node.mesh.identity import Identity
from node.mesh.interfaces import Interface
from node.mesh.peers import Place
from tests.mesh.fleets import Fleet
from tests.mesh.nodes import until
from tests.support.namespaces import Wire, skip_unless_possible

FABRIC, A = "f" * 16, "a" * 16
WIRED = Interface("eth0", 2, ("10.0.0.7",), ("fd00::7",))


def said(port: int = 8470, addresses: tuple[str, ...] = ("10.0.0.9",), **changed: Any) -> AsyncServiceInfo:
    told = {"txtvers": "1", "id": A, "fab": FABRIC, "api": "1", "cap": "chat", "pv": "00000000"} | changed
    told = {key: value for key, value in told.items() if value is not None}
    return AsyncServiceInfo(SERVICE, f"{FABRIC}-{A}.{SERVICE}", port, properties=told, parsed_addresses=list(addresses))


def test_what_is_announced_is_understood_and_says_nothing_else(tmp_path: Path) -> None:
    one = Fleet(tmp_path).node("shop-in-paris")
    info = announcement(one, 8470, ["chat", "chunk"], "profile text", [WIRED])
    assert understood(info, one.fabric) == Place(("10.0.0.7", "fd00::7"), 8470, one.id)
    assert set(info.decoded_properties) == {"txtvers", "id", "fab", "api", "cap", "pv"}
    assert b"paris" not in info.text
    assert "paris" not in info.name + str(info.server)
    assert len(info.text) <= 120
    assert info.name == f"{one.fabric}-{one.id}.{SERVICE}"
    other = announcement(one, 8470, ["chat"], "another", [WIRED])
    assert info.decoded_properties["pv"] != other.decoded_properties["pv"]


def test_a_good_one() -> None:
    assert understood(said(), FABRIC) == Place(("10.0.0.9",), 8470, A)


@pytest.mark.parametrize(
    "changed",
    [
        {"fab": "e" * 16},
        {"txtvers": "2"},
        {"api": "2"},
        {"id": "A" * 16},
        {"id": "../etc"},
        {"id": None},
        {"cap": "x" * 100},
        {"cap": "Chat"},
        {"more": "x" * 240, "and": "x" * 240},
        {"fab": b"\xff\xfe"},
    ],
)
def test_what_is_ignored(changed: dict[str, Any]) -> None:
    assert understood(said(**changed), FABRIC) is None


def test_no_port_no_address_and_too_many() -> None:
    assert understood(said(port=0), FABRIC) is None
    assert understood(said(addresses=()), FABRIC) is None
    place = understood(said(addresses=tuple(f"10.0.0.{number}" for number in range(1, 30))), FABRIC)
    assert place is not None
    assert len(place.addresses) == 8


def test_a_txt_string_over_255_bytes_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="256"):
        said(cap="x" * 300)


class Noted:
    """A discovery whose hints are kept."""

    def __init__(self, one: Identity) -> None:
        self.places: dict[str, Place] = {}
        self.gone: list[str] = []
        self.discovery = Discovery(one, 8470, ["chat"], "", [], self._hinted, self.gone.append, lambda: None)

    def _hinted(self, place: Place) -> None:
        self.places[place.id] = place


def raw_txt(instance: str, text: bytes) -> bytes:
    """An unasked mDNS answer with a PTR, an SRV and this TXT record."""

    def name(dotted: str) -> bytes:
        return b"".join(bytes([len(part)]) + part.encode() for part in dotted.split(".") if part) + b"\0"

    full = f"{instance}.{SERVICE}"

    def record(owner: str, kind: int, data: bytes) -> bytes:
        return (
            name(owner)
            + kind.to_bytes(2, "big")
            + b"\0\1"
            + (120).to_bytes(4, "big")
            + len(data).to_bytes(2, "big")
            + data
        )

    srv = b"\0\0\0\0" + (8470).to_bytes(2, "big") + name("liar.local.")
    records = [record(SERVICE, 12, name(full)), record(full, 33, srv), record(full, 16, text)]
    records.append(record("liar.local.", 1, socket.inet_aton("10.91.0.66")))
    return b"\0\0\x84\0\0\0" + len(records).to_bytes(2, "big") + b"\0\0\0\0" + b"".join(records)


async def _meets(own: Identity, other: str, hostile: list[bytes], met: threading.Event) -> dict[str, Any]:
    """Look around for a node while hostile packets come, until it says goodbye; what was noted."""
    noted = Noted(own)
    await noted.discovery.start()
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("10.91.0.1"))
    while not (other in noted.places and noted.discovery.foreign):  # what is sent before it listens is lost
        for packet in hostile:
            sender.sendto(packet, ("224.0.0.251", 5353))
        await asyncio.sleep(0.2)
    place = noted.places[other]
    met.set()
    await until(lambda: other in noted.gone, 60)
    sender.close()
    await noted.discovery.stop()
    return {"addresses": place.addresses, "port": place.port, "seen": sorted(noted.places)}


async def _conflicted(own: Identity) -> str:
    """Start while somebody else announces this node's own instance; the instance that it took."""
    noted = Noted(own)
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("10.91.0.1"))
    await noted.discovery.start()
    async with asyncio.timeout(30):
        while noted.discovery._info is None:
            sender.sendto(raw_txt(f"{own.fabric}-{own.id}", b"\x09txtvers=1"), ("224.0.0.251", 5353))
            await asyncio.sleep(0.02)
    sender.close()
    name = noted.discovery._info.name
    await noted.discovery.stop()
    return name


def test_another_one_with_this_nodes_id_is_told_and_does_not_silence_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    skip_unless_possible()
    own = Fleet(tmp_path).node("own")
    with Wire(1, prefix="opc") as wire:
        name = wire.on(1, lambda: asyncio.run(_conflicted(own)))
    assert name.startswith(f"{own.fabric}-{own.id}-")
    assert "somebody else announces this node's id" in caplog.text


async def _stays(own: Identity, met: threading.Event) -> None:
    noted = Noted(own)
    await noted.discovery.start()
    await until(met.is_set, 60)
    await noted.discovery.stop()


def test_two_hosts_on_a_wire_with_a_liar(tmp_path: Path) -> None:
    skip_unless_possible()
    fleet = Fleet(tmp_path)
    one, other = fleet.node("one"), fleet.node("other")
    long = bytes([255]) + b"x" * 255 + bytes([255]) + b"y" * 255
    told = f"id={A}".encode()
    hostile = [
        raw_txt("somebody-else", b"\x09txtvers=1"),
        raw_txt(f"{one.fabric}-{A}", long),
        raw_txt(f"{one.fabric}-{A[:-1]}b", b"\xff" + b"z" * 40),  # a string longer than the record
        raw_txt(f"{one.fabric}-{A[:-1]}c", bytes([len(told)]) + told),
        b"\xff" * 9000,
        b"",
    ]
    met = threading.Event()
    with Wire(2, prefix="opd") as wire:
        there = threading.Thread(target=lambda: wire.on(2, lambda: asyncio.run(_stays(other, met))))
        there.start()
        seen = wire.on(1, lambda: asyncio.run(_meets(one, other.id, hostile, met)))
        there.join()
    assert seen["port"] == 8470
    assert "10.91.0.2" in seen["addresses"]
    assert any(address.startswith("fe80::") and "%" in address for address in seen["addresses"])
    assert seen["seen"] == [other.id]
    assert json.dumps(seen)


async def test_a_network_that_cannot_be_used_yet_is_tried_again_until_there_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[list[str | int]] = []

    class Failing:
        def __init__(self, interfaces: list[str | int], ip_version: object) -> None:
            tries.append(interfaces)
            raise OSError("Cannot assign requested address")

    monkeypatch.setattr(module, "AsyncZeroconf", Failing)
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.01)
    one = Discovery(Fleet(tmp_path).node("n"), 8470, [], "", [], lambda _: None, lambda _: None, lambda: None)
    one._watch.known = found = (WIRED,)
    trying = asyncio.create_task(one._bring_up(found))
    await until(lambda: len(tries) == 3)
    assert tries[0] == ["10.0.0.7", 2]
    assert "cannot be found by multicast" in caplog.text
    one._watch.known = ()
    await asyncio.wait_for(trying, 10)
    await one._bring_up(())
    assert len(tries) == 3, "there is nothing to be on"
