"""What many answers at once over links cost: a real node in a process of its own, real UDP on loopback, a crowd here.

The echo engine makes a token of every answer in each step, so many steps a second: all of a batch leave together, as
with a model. What a client waits beyond that pace is a stall, from 3 ms on; tokens of one chunk came at the same time.
Everything is measured in a window in which all answers stream, and after links have learnt that nothing is lost.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from node.bench.ledger import IDLE
from node.bench.link import NOTICED_S
from node.bench.linkcrowd import Crowd, Heard
from node.bench.process import NodeProcess
from node.bench.report import Figure
from node.bench.through import asked
from node.errors import OperatorError

STALL_POINTS = 1.0  # percentage points that many streams may stall more than one
PACKET_US = 120.0
STREAM_KIB = 64.0
MOST_SMOOTH = 200  # streams on two cores, clients included, that stall no more than one; beyond, the node coalesces
FAIR = 0.9  # of the median answer's tokens that each must have got
_WARM, _WARM_TOKENS = 16, 40
_PATIENCE_S = 60.0
_ASKS_A_SECOND = 200

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """So many answers of so many tokens; the window begins `settle_s` after the last one's first token."""

    streams: int
    tokens: int = 300
    rate: float = 20.0
    settle_s: float = 6.5

    @property
    def over_s(self) -> float:
        """Seconds in which all clients ask, one after the other."""
        return self.streams / _ASKS_A_SECOND

    @property
    def changes(self) -> list[str]:
        """What a node needs to be set to."""
        slots = max(self.streams, 64)
        return [
            *("engine.kind=echo", f"engine.echo_rate={self.rate:g}", f"engine.slots={slots}", f"engine.batch={slots}"),
            *("engine.kv_tokens=16777216", "link.enabled=1", f"link.max_links={slots + _WARM}", "load.gap_ms=60000"),
            *("queue.policy=fifo", f"queue.max_waiting={slots}", "streams.database=", "prewarm.enabled=0"),
        ]


def plan_for(streams: int, *, quick: bool = False) -> Plan:
    """How so many are measured: a crowd takes longer to come, and has learnt sooner what it must."""
    if streams > MOST_SMOOTH:
        return Plan(streams, tokens=300 if quick else 400, settle_s=2.0)
    return Plan(streams, tokens=160, settle_s=3.0) if quick else Plan(streams)


@dataclass(frozen=True, slots=True)
class Seen:
    """A run: the answers, and what the node used from `begin` to `end`.

    `made` are the times at which the engine made tokens, and `spent` nanoseconds by kind of work: a node tells one of
    them.
    """

    plan: Plan
    heard: Sequence[Heard]
    begin: float
    end: float
    node_cpu_s: float
    client_cpu_s: float
    datagrams: int
    grown: int  # bytes that the node's memory grew by
    spent: Mapping[str, int]
    made: Sequence[float] = ()

    @property
    def packet_us(self) -> float:
        """Microseconds of the node's processors for each datagram that came or left."""
        return 1e6 * self.node_cpu_s / max(1, self.datagrams)

    @property
    def stalls(self) -> list[float]:
        """The stall ratio of each answer, in %."""
        return [stall(one.arrivals(self.begin, self.end), 1 / self.plan.rate) for one in self.heard]

    @property
    def made_late(self) -> float:
        """The stall ratio of what the engine made, before any link had it, in %."""
        return stall([at for at in self.made if self.begin <= at <= self.end], 1 / self.plan.rate)

    @property
    def counts(self) -> list[int]:
        """Tokens of each answer."""
        return [len(one.arrivals(self.begin, self.end)) for one in self.heard]

    @property
    def tokens_a_chunk(self) -> float:
        """On average."""
        chunks = sum(self.begin <= at <= self.end for one in self.heard for at in one.times)
        return sum(self.counts) / max(1, chunks)


def stall(times: Sequence[float], pace: float) -> float:
    """The stall ratio of tokens that came at these times and were made `pace` seconds apart, in %."""
    if len(times) < 2:
        return 100.0
    waits = (after - before - pace for before, after in itertools.pairwise(times))
    return 100 * sum(wait for wait in waits if wait > NOTICED_S) / (times[-1] - times[0])


async def run(plan: Plan, *, watched: bool = False) -> Seen:
    """One node, one crowd, all of their answers; `watched` tells where the node's time goes, and costs some of it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "told.json"
        module = "node.bench.ledger" if watched else "node.bench.steptimes"
        async with NodeProcess(plan.changes, through=(module, str(file))) as node:
            return await _measure(node, plan, file, watched)


async def _measure(node: NodeProcess, plan: Plan, file: Path, watched: bool) -> Seen:
    patience_s = _PATIENCE_S + 4 * plan.tokens / plan.rate
    await _warm(node, plan)
    empty, crowd = node.rss(), Crowd(node.url, plan.streams, plan.tokens)
    try:
        await crowd.open()
        await crowd.ask(plan.over_s)
        await crowd.until(lambda one: one.begun == plan.streams, patience_s)
        await asyncio.sleep(plan.settle_s)
        if crowd.ended:
            raise OperatorError(
                f"{plan.streams:,} streams never ran together: the first had ended when the last had begun.",
                hint="Other work on the machine makes this likelier; so do more streams than it can bear.",
            )
        before = await asked(node, file, dict[str, int]) if watched else {}
        begin, cpu_s, own_s, count = time.monotonic(), node.cpu_s(), time.process_time(), crowd.datagrams
        await crowd.until(lambda one: one.ended > 0, patience_s)
        end, cpu_s, own_s = time.monotonic(), node.cpu_s() - cpu_s, time.process_time() - own_s
        count, grown = crowd.datagrams - count, node.rss() - empty
        spent = await asked(node, file, dict[str, int]) if watched else {}
        await crowd.until(lambda one: one.ended == plan.streams, patience_s)
        made = [] if watched else await asked(node, file, list[float])
    finally:
        crowd.close()
    used = {kind: spent[kind] - before.get(kind, 0) for kind in spent}
    return Seen(plan, list(crowd.heard.values()), begin, end, cpu_s, own_s, count, grown, used, made)


async def _warm(node: NodeProcess, plan: Plan) -> None:
    """A few answers, so that what every node needs once is there."""
    crowd = Crowd(node.url, _WARM, _WARM_TOKENS)
    try:
        await crowd.open()
        await crowd.ask(0.1)
        await crowd.until(lambda one: one.ended == _WARM, _PATIENCE_S + _WARM_TOKENS / plan.rate)
    finally:
        crowd.close()


def figures(one: Seen, many: Sequence[Seen]) -> Iterator[Figure]:
    """What one stream, and more and more of them, come to."""
    yield from _exact([one, *many])
    alone = statistics.fmean(one.stalls)
    yield Figure("1 stream: stall ratio", alone, "%")
    for seen in many:
        yield from _crowded(seen, alone)


def _exact(all_seen: Sequence[Seen]) -> Iterator[Figure]:
    for seen in all_seen:
        exact = sum(one.exact for one in seen.heard)
        yield Figure(f"{_title(seen)}: exact", 100 * exact / seen.plan.streams, "%", at_least=100)


def _crowded(seen: Seen, alone: float) -> Iterator[Figure]:
    title, window = _title(seen), seen.end - seen.begin
    load = f"node {seen.node_cpu_s / window:.0%} and clients {seen.client_cpu_s / window:.0%} of a core"
    counts, stalls, smooth = seen.counts, seen.stalls, seen.plan.streams <= MOST_SMOOTH
    yield Figure(
        f"{title}: stall ratio over one stream's",
        statistics.fmean(stalls) - alone,
        "points",
        at_most=STALL_POINTS if smooth else None,
        detail=f"{statistics.fmean(stalls):.2f} %, the worst stream {max(stalls):.2f} %; {load}",
    )
    if seen.made:
        yield Figure(
            f"{title}: stall ratio of the engine itself",
            seen.made_late,
            "%",
            detail="what it made late, before any link had it",
        )
    least, median = min(counts), statistics.median(counts)
    pace = f"{median / window:.1f} tokens/s each, the slowest {least / window:.1f}"
    yield Figure(f"{title}: the slowest / the median", least / max(1, median), at_least=FAIR, detail=pace)
    yield Figure(f"{title}: tokens a chunk", seen.tokens_a_chunk, detail="more than 1 where the node coalesces")
    rate = f"{seen.datagrams / window:,.0f} datagrams/s, both directions"
    yield Figure(
        f"{title}: node's CPU a datagram", seen.packet_us, "µs", at_most=PACKET_US if smooth else None, detail=rate
    )
    grown = f"{seen.plan.tokens} tokens each, their journal included"
    kib = seen.grown / 1024 / seen.plan.streams
    yield Figure(f"{title}: memory a stream", kib, "KiB", at_most=STREAM_KIB, detail=grown)


def breakdown(seen: Seen, packet_us: float) -> Iterator[Figure]:
    """Of the microseconds that a datagram costs, how many go where; shares are those of a watched node."""
    spent = {kind: value for kind, value in seen.spent.items() if kind != IDLE}
    whole = sum(spent.values())
    for kind, value in sorted(spent.items(), key=lambda pair: -pair[1]):
        yield Figure(f"of {packet_us:.0f} µs: {kind}", packet_us * value / max(1, whole), "µs")


def _title(seen: Seen) -> str:
    return "1 stream" if seen.plan.streams == 1 else f"{seen.plan.streams:,} streams"
