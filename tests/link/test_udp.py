"""Links over real sockets on loopback."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
import time
import traceback
from collections.abc import AsyncIterator

import pytest

from node.link.connection import Connection
from node.link.events import Came, Delivered, Ended, Event
from node.link.udp import UdpLinks

SECRET = bytes(range(32))


class End:
    """One end with what happened to it."""

    def __init__(self) -> None:
        self.events: list[tuple[Connection, Event]] = []
        self.changed = asyncio.Event()
        self.dead: list[Connection] = []
        self.links = UdpLinks(self._note, self.dead.append)

    def _note(self, connection: Connection, event: Event) -> None:
        self.events.append((connection, event))
        self.changed.set()

    def text(self, connection: Connection) -> bytes:
        return b"".join(e.chunk for c, e in self.events if c is connection and isinstance(e, Came))

    async def until(self, connection: Connection, event: Event) -> None:
        async with asyncio.timeout(20):
            while (connection, event) not in self.events:
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
async def ends() -> AsyncIterator[tuple[End, End]]:
    node, client = End(), End()
    host, port = await node.links.open("127.0.0.1", 0)
    await client.links.open(host, port, peer=True)
    yield node, client
    node.links.close()
    client.links.close()
    node.links.close()


def link(node: End, client: End, number: int) -> tuple[Connection, Connection]:
    now = asyncio.get_running_loop().time()
    there = Connection(SECRET, number, client=False, address=None, entropy=os.urandom, now=now)
    here = Connection(SECRET, number, client=True, address="node", entropy=os.urandom, now=now)
    node.links.add(there)
    client.links.add(here)
    return there, here


async def talk(node: End, client: End, number: int, words: list[bytes]) -> None:
    there, here = link(node, client, number)
    loop = asyncio.get_running_loop()
    here.open(0)
    here.send(0, b"question", loop.time())
    here.finish(0, loop.time())
    client.links.wake(here)
    await node.until(there, Ended(0, True))
    for word in words:
        there.send(0, word, loop.time())
        node.links.wake(there)
        await asyncio.sleep(0)
    there.finish(0, loop.time(), b"meta")
    node.links.wake(there)
    await client.until(here, Ended(0, True, b"meta"))
    await node.until(there, Delivered(0, True))
    assert node.text(there) == b"question"
    assert client.text(here) == b"".join(words)


async def test_replies_of_many_links_at_once(ends: tuple[End, End]) -> None:
    node, client = ends
    rng = random.Random(1)
    texts = [[rng.randbytes(rng.randint(0, 30)) for _ in range(40)] for _ in range(20)]
    await asyncio.gather(*(talk(node, client, number, words) for number, words in enumerate(texts)))
    assert len(node.links) == 20
    assert node.links.unknown == node.links.refused == 0


async def test_garbage_is_counted_and_answered_by_nothing(ends: tuple[End, End]) -> None:
    node, client = ends
    there, here = link(node, client, 5)
    port = node.links._socket.getsockname()[1] if node.links._socket else 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.settimeout(0.2)
        for size in (0, 1, 9, 40, 1200, 2000):
            stranger.sendto(os.urandom(size), ("127.0.0.1", port))
            stranger.sendto(b"\x4f\0\0\0\x05" + os.urandom(size), ("127.0.0.1", port))
        await talk(node, client, 6, [b"still here"])
        with pytest.raises(TimeoutError):
            stranger.recv(1500)
    assert node.links.unknown + there.rejected == 12
    assert there.received > 0 or here.received == 0


async def test_a_removed_link_is_unknown(ends: tuple[End, End]) -> None:
    node, client = ends
    there, here = link(node, client, 5)
    node.links.remove(there)
    assert 5 not in node.links
    here.open(0)
    here.send(0, b"x", asyncio.get_running_loop().time())
    client.links.wake(here)
    await talk(node, client, 6, [b"word"])
    assert node.links.unknown > 0


async def test_a_port_in_use_is_told(ends: tuple[End, End]) -> None:
    node, _ = ends
    assert node.links._socket is not None
    port = node.links._socket.getsockname()[1]
    with pytest.raises(OSError, match="in use"):
        await End().links.open("127.0.0.1", port)


async def test_reading_ends_where_a_flood_does_not(ends: tuple[End, End]) -> None:
    """The socket always has one more; others have their turn nevertheless."""
    node, client = ends
    turns = []

    def endless() -> tuple[bytes, object, None]:
        return b"\x4f\0\0\0\x63 garbage without end", ("192.0.2.1", 9), None

    node.links._take = endless  # type: ignore[method-assign,assignment]
    for _ in range(5):
        before = node.links.came
        node.links._readable()
        turns.append(node.links.came - before)
    assert min(turns) >= 64
    assert node.links.unknown == sum(turns)
    del node.links._take
    await talk(node, client, 6, [b"still here"])


async def test_much_that_leaves_at_once_does_not_keep_what_comes_waiting(ends: tuple[End, End]) -> None:
    node, client = ends
    assert node.links._socket is not None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(b"comes meanwhile", node.links._socket.getsockname())
    for number in range(260):
        link(node, client, number)
    assert node.links.came == 1, "it was read in between, before the loop had its next turn"


async def test_a_group_does_not_wait_for_all_the_others(ends: tuple[End, End]) -> None:
    """With so many, the first have left when the last speak; few of them leave at the end of the turn."""
    node, client = ends
    loop = asyncio.get_running_loop()
    links = [link(node, client, number)[1] for number in range(40)]
    await asyncio.sleep(0)
    sent = []
    for here in links:
        here.open(0)
        here.send(0, b"word", loop.time())
        client.links.wake(here)
        client.links.wake(here)
        sent.append(client.links.sent)
    assert (sent[30], sent[31], sent[39]) == (0, 32, 32)
    await asyncio.sleep(0)
    assert client.links.sent == 40


async def test_who_is_answered_while_it_is_read_makes_no_reading_within_reading(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More links than are served before what came is read; each datagram is answered at once, as a refusal is."""
    monkeypatch.setattr("node.link.udp._LEAST_TURN_S", 10.0)  # however slow this machine is
    monkeypatch.setattr("node.link.udp._TURN_S", 10.0)
    node, client = ends
    assert client.links._socket is not None
    address = client.links._socket.getsockname()
    loop = asyncio.get_running_loop()
    links = [link(node, client, number) for number in range(300)]
    await asyncio.sleep(0)
    deepest = 0

    def answer(connection: Connection, event: Event) -> None:
        nonlocal deepest
        calls = traceback.walk_stack(sys._getframe())
        deepest = max(deepest, sum(frame.f_code is UdpLinks._read.__code__ for frame, _ in calls))
        if isinstance(event, Ended):
            connection.finish(event.slot, loop.time())
            node.links.wake(connection)

    come: list[bytes] = []
    for slot in range(3):
        for _, here in links:
            here.open(slot)
            here.finish(slot, loop.time())
            come += [data for data, _ in here.datagrams_to_send(loop.time())]

    def take() -> tuple[bytes, object, None]:
        if not come:
            raise BlockingIOError
        return come.pop(0), address, None

    node.links._on_event = answer
    node.links._take = take  # type: ignore[method-assign,assignment]
    node.links._readable()
    assert node.links.came == 900
    assert deepest == 1


class Reading:
    """What a link was given, and what had been sent by then."""

    def __init__(self, node: End, there: Connection) -> None:
        self.came: list[tuple[float, float]] = []
        self.sent: list[int] = []
        self._node = node
        there.receive_datagram = self._take  # type: ignore[method-assign]

    def _take(self, data: bytes, address: object, now: float, came: float | None = None) -> None:
        assert came is not None
        self.came.append((now, came))
        self.sent.append(self._node.links.sent)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux's kernel tells when a datagram came")
async def test_a_busy_loop_knows_when_a_datagram_came(ends: tuple[End, End]) -> None:
    node, client = ends
    there, here = link(node, client, 5)
    reading = Reading(node, there)
    here.ping()
    client.links._serve(here, asyncio.get_running_loop().time())
    time.sleep(0.3)  # noqa: ASYNC251  # what it is about
    node.links._readable()
    [(now, came)] = reading.came
    assert now - came > 0.25
    here.ping()
    client.links._serve(here, asyncio.get_running_loop().time())
    node.links._stamped = False
    node.links._readable()
    assert reading.came[1][0] == reading.came[1][1], "who is not told takes it for just come"


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
async def test_a_clock_that_is_set_makes_nobody_older_or_younger(
    ends: tuple[End, End], step: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, client = ends
    there, here = link(node, client, 5)
    reading = Reading(node, there)
    node.links._readable()  # nothing is there
    emptied = node.links._emptied_at
    here.ping()
    client.links._serve(here, asyncio.get_running_loop().time())
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + step)
    node.links._readable()
    [(_, came)] = reading.came
    assert emptied <= came <= asyncio.get_running_loop().time()


async def test_what_is_said_leaves_before_what_came_is_read(ends: tuple[End, End]) -> None:
    node, client = ends
    there, here = link(node, client, 5)
    talker, _ = link(node, client, 6)
    await talk(node, client, 7, [b"word"])
    reading = Reading(node, there)
    here.ping()
    client.links._serve(here, asyncio.get_running_loop().time())
    before = node.links.sent
    talker.ping()
    assert client.links._socket is not None
    talker._where.address, talker._where.proven = client.links._socket.getsockname(), True
    node.links.wake(talker)
    node.links._readable()
    assert reading.sent == [before + 1]


async def test_what_came_first_is_told_before_the_rest_is_read(ends: tuple[End, End]) -> None:
    node, client = ends
    loop = asyncio.get_running_loop()
    first, here = link(node, client, 5)
    second, other = link(node, client, 6)
    told: list[int] = []
    second.receive_datagram = lambda *came: told.append(len(node.events))  # type: ignore[method-assign]
    for end in (here, other):
        end.open(0)
        end.send(0, b"question", loop.time())
        client.links._serve(end, loop.time())
    node.links._readable()
    assert told == [len(node.events)] == [2], "that the first was opened, and its question"
    assert {connection for connection, _ in node.events} == {first}


async def test_the_dead_are_swept(ends: tuple[End, End]) -> None:
    node, client = ends
    there, _ = link(node, client, 5)
    there.closed = True
    node.links._sweep()
    assert node.dead == [there]
    assert len(node.links) == 0


class Fault(Exception):
    """Something that nobody thought of."""


@pytest.mark.parametrize("where", ["receive_datagram", "next_event", "datagrams_to_send", "timer"])
async def test_a_fault_in_one_link_ends_that_link_alone(
    ends: tuple[End, End], where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its datagrams are in the midst of the batch: what came after them is read, and goes on its way."""
    node, client = ends
    links = [link(node, client, number) for number in range(3)]
    broken = links[1][0]

    def fail(*whatever: object) -> None:
        raise Fault(where)

    setattr(broken, where, fail)
    assert client.links._socket is not None
    for _, here in links:
        here.open(0)
        here.send(0, b"question", asyncio.get_running_loop().time())
        client.links._serve(here, asyncio.get_running_loop().time())
    node.links._readable()
    assert [number in node.links for number in range(3)] == [True, False, True]
    assert [node.text(there) for there, _ in (links[0], links[2])] == [b"question", b"question"]
    assert node.dead == [broken]
    assert broken.closed
    assert node.links.broken == 1
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [Fault]
    await talk(node, client, 7, [b"the", b"others", b"go", b"on"])
    assert node.links.broken == 1


async def test_a_fault_of_the_application_is_its_links_too(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, client = ends
    bad, here = link(node, client, 1)
    note = node._note

    def choosy(connection: Connection, event: Event) -> None:
        if connection is bad:
            raise Fault("I cannot bear it")
        note(connection, event)

    monkeypatch.setattr(node.links, "_on_event", choosy)
    here.open(0)
    here.send(0, b"question", asyncio.get_running_loop().time())
    client.links.wake(here)
    await talk(node, client, 2, [b"still", b"here"])
    assert node.dead == [bad]
    assert len(node.links) == 1


async def test_a_link_that_cannot_say_goodbye_does_not_keep_the_others_from_it(ends: tuple[End, End]) -> None:
    node, client = ends
    first, _ = link(node, client, 1)
    second, here = link(node, client, 2)
    await talk(node, client, 3, [b"word"])
    here.ping()
    client.links.wake(here)
    async with asyncio.timeout(10):
        while not second.received:  # noqa: ASYNC110  # it is counted, not told
            await asyncio.sleep(0.01)

    def fail(*whatever: object) -> None:
        raise Fault

    first.datagrams_to_send = fail  # type: ignore[method-assign,assignment]
    node.links.close()
    assert node.links._socket is None
    assert second.closed
