"""What strangers can do to a node's links: floods from a process of their own, while clients are answered.

    garbage     bytes that are no datagrams of ours
    bad tags    the number of a client's link, and nonsense after it
    replays     a client's own datagrams, again and again
    stolen      a link's first datagrams, which never reached the node, from another address: what is sent there?

Run as `python -m node.bench.linkflood`, it is the stranger: it reads an `Order` from stdin, sends, and says how many.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import aiohttp
import msgspec

from node.bench import linkcrowd
from node.bench.figures import percentile
from node.bench.linkcrowd import Crowd
from node.bench.linkstreams import Plan
from node.bench.process import NodeProcess, environment
from node.bench.prompts import words
from node.bench.report import Figure
from node.link import packet
from node.link.whereabouts import AMPLIFICATION
from node.link.words import cut

FLOODS = ("garbage", "bad tags", "replays")
CLIENTS = 4
RATE = 100_000.0  # datagrams a second, where one process can
LIVE_MS, MEMORY_MIB = 100.0, 4.0
MOST_S = 30.0
_DIFFERENT = 4096
_TURN, _TURN_S = 50, 0.01
_LIVE_EVERY_S, _LIVE_MOST_S = 0.05, 10.0
_PATIENCE_S = 60.0
_REJECTED = re.compile(r'llm_link_packets_total\{fate="rejected"\} (\S+)')

Tell = Callable[[str], None]


class Order(msgspec.Struct):
    """What to send to a port of this machine, over and over; never for longer than MOST_S."""

    port: int
    seconds: float
    datagrams: list[bytes]
    rate: float = RATE


@dataclass(frozen=True, slots=True)
class Held:
    """What a flood left of the node: how it answered meanwhile, and by how much its memory grew."""

    kind: str
    exact: int
    live: Sequence[float]
    grown: int
    sent: int
    reached: int
    seconds: float


def send(order: Order, clock: Callable[[], float] = time.monotonic) -> int:
    """Obey; gives how many left."""
    sent, count, began = 0, len(order.datagrams), clock()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.connect(("127.0.0.1", order.port))
        while (passed := clock() - began) < min(order.seconds, MOST_S):
            if sent > order.rate * passed:
                time.sleep(0.0005)
                continue
            for _ in range(_TURN):
                stranger.send(order.datagrams[sent % count])
                sent += 1
    return sent


def garbage(rng: random.Random) -> Iterator[bytes]:
    """Of any length that a datagram may have, most of them short."""
    while True:
        yield rng.randbytes(min(packet.MAX_DATAGRAM, 1 + int(rng.expovariate(1 / 60))))


def bad_tags(rng: random.Random, number: int) -> Iterator[bytes]:
    """As the link's own look from outside."""
    while True:
        yield packet.head(number, rng.randrange(1 << 16)) + rng.randbytes(rng.randrange(17, 120))


async def flood(order: Order) -> int:
    """Send from a process of its own."""
    stranger = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "node.bench.linkflood"),
        env=environment(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        said, _ = await stranger.communicate(msgspec.msgpack.encode(order))
    finally:
        if stranger.returncode is None:
            stranger.kill()
            await stranger.wait()
    return int(said)


async def under(node: NodeProcess, kind: str, seconds: float) -> Held:
    """Answer some clients while a flood comes."""
    plan = Plan(CLIENTS)
    crowd = Tapped(node.url, plan.streams, round(plan.rate * (seconds + 1)))
    try:
        await crowd.open()
        await crowd.ask(0.1)
        await crowd.until(lambda one: one.begun == plan.streams, _PATIENCE_S)
        order = Order(crowd.port, seconds, _datagrams(kind, crowd))
        before, rejected = node.rss(), await _rejected(node)
        live = asyncio.create_task(_watch(node))
        try:
            sent = await flood(order)
        finally:
            live.cancel()
            answers = await live
        reached = await _rejected(node) - rejected
        await crowd.until(lambda one: one.ended == plan.streams, _PATIENCE_S)
        exact = sum(one.exact for one in crowd.heard.values())
        return Held(kind, exact, answers, node.rss() - before, sent, reached, seconds)
    finally:
        crowd.close()


class Tapped(Crowd):
    """A crowd of whose datagrams somebody keeps copies."""

    def __init__(self, url: str, clients: int, tokens: int) -> None:
        super().__init__(url, clients, tokens)
        self.tapped: list[bytes] = []
        put = self._udp._put

        def tap(data: bytes, address: object) -> None:
            self.tapped.append(data)
            put(data, address)

        self._udp._put = tap  # type: ignore[method-assign]


def _datagrams(kind: str, crowd: Tapped) -> list[bytes]:
    rng = random.Random(kind)
    if kind == "replays":
        return list(crowd.tapped)
    made = garbage(rng) if kind == "garbage" else bad_tags(rng, crowd.links[0].number)
    return [next(made) for _ in range(_DIFFERENT)]


async def stolen(node: NodeProcess, seconds: float) -> tuple[int, int]:
    """Bytes of a link's first datagrams that came from a stranger's address, and bytes that went there."""
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        told = await linkcrowd.told(session, node.url)
    link = linkcrowd.end(told)
    now = time.monotonic()
    link.open(0)
    for chunk in cut(linkcrowd.request(words(30, 1), 5000)):
        link.send(0, chunk, now)
    link.finish(0, now)
    taken = [data for data, _ in link.datagrams_to_send(now)]
    sent = back = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.setblocking(False)
        stranger.connect(("127.0.0.1", told.port))
        for turn in range(max(1, round(seconds / _TURN_S))):
            stranger.send(taken[turn % len(taken)])  # once each, then replays, which give no more room
            sent += len(taken[turn]) if turn < len(taken) else 0
            await asyncio.sleep(_TURN_S)
            back += _received(stranger)
    return sent, back


def _received(stranger: socket.socket) -> int:
    size = 0
    while True:
        try:
            size += len(stranger.recv(packet.MAX_DATAGRAM + 1))
        except BlockingIOError:
            return size


async def _watch(node: NodeProcess) -> list[float]:
    """How long /health/live took, each time, until cancelled; one that does not answer counts as its timeout."""
    took: list[float] = []
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_LIVE_MOST_S)) as session:
            while True:
                began = time.monotonic()
                try:
                    async with session.get(f"{node.url}/health/live") as response:
                        fine = response.status == 200
                except (aiohttp.ClientError, TimeoutError):
                    fine = False
                took.append(time.monotonic() - began if fine else _LIVE_MOST_S)
                await asyncio.sleep(_LIVE_EVERY_S)
    except asyncio.CancelledError:
        return took


async def _rejected(node: NodeProcess) -> int:
    """Datagrams that the node has refused so far, as it says itself."""
    async with aiohttp.ClientSession() as session, session.get(f"{node.url}/metrics") as response:
        found = _REJECTED.search(await response.text())
    return round(float(found[1])) if found else 0


async def figures(seconds: float, tell: Tell) -> list[Figure]:
    """All kinds, one after the other, on one node."""
    found: list[Figure] = []
    async with NodeProcess([*Plan(64).changes, "server.grace_s=0"]) as node:
        await under(node, FLOODS[0], min(seconds, 0.5))  # what every node needs once is there
        for kind in FLOODS:
            tell(f"a flood of {kind}")
            found += told_of(await under(node, kind, seconds))
        tell("stolen datagrams")
        sent, back = await stolen(node, seconds)
    detail = f"{back:,} bytes went to an address that {sent:,} bytes came from"
    return [*found, Figure("stolen datagrams: bytes back / bytes", back / sent, at_most=AMPLIFICATION, detail=detail)]


def told_of(held: Held) -> Iterator[Figure]:
    """What one flood comes to."""
    rates = f"{held.sent / held.seconds:,.0f} datagrams/s sent, {held.reached / held.seconds:,.0f} read and refused"
    yield Figure(f"{held.kind}: answers exact", 100 * held.exact / CLIENTS, "%", at_least=100, detail=rates)
    live = [1000 * seconds for seconds in held.live]
    worst = f"longest {max(live):.1f} ms of {len(live)}"
    yield Figure(f"{held.kind}: /health/live p99", percentile(live, 0.99), "ms", at_most=LIVE_MS, detail=worst)
    yield Figure(f"{held.kind}: memory grown", held.grown / (1 << 20), "MiB", at_most=MEMORY_MIB)


def main(told: bytes) -> int:
    """The stranger's process."""
    return send(msgspec.msgpack.decode(told, type=Order))


if __name__ == "__main__":
    print(main(sys.stdin.buffer.read()))  # noqa: T201  # its parent reads it
