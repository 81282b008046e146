"""`outpost bench link-streams`: its words on the command line, and what they make of it."""

from __future__ import annotations

import argparse

from node.bench import linkflood, linkstreams
from node.bench.linkstreams import MOST_SMOOTH, PACKET_US, STALL_POINTS, STREAM_KIB, Plan, plan_for
from node.bench.report import Figure
from node.commands.numbers import number, several, whole
from node.commands.steps import Steps
from node.link.whereabouts import AMPLIFICATION

STREAMS = (200, 1000)

ABOUT = f"""\
What many answers at once over links cost a node, and what strangers who flood its UDP port can do to it.

1. Streams: --streams links with an answer each, at {Plan(1).rate:g} tokens/s from the echo engine, over UDP on \
loopback, all
   clients in one process; how late the engine itself was is told beside what they saw. Up to {MOST_SMOOTH} streams may
   stall {STALL_POINTS:g} point more than one stream does, and a datagram, in or out, may cost the node {PACKET_US:g} \
µs of CPU, everything
   counted; where they go is measured on a second, watched node. Beyond, the node coalesces: chunks grow, and nobody
   starves. Each stream may take {STREAM_KIB:g} KiB of memory.
2. Floods: for seconds, as many datagrams as one process can send: garbage, a link's number with bad tags, replays, and
   a stolen first datagram from another address. An answer must stay exact, /health/live must answer, memory stay flat,
   and no more than {AMPLIFICATION} times the stolen bytes may go to the other address.

Both cores of a small machine are busy with it: other work shows at once. It takes about three minutes, with --quick
one.

  outpost bench link-streams --only streams --streams 50,200
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What may be said."""
    say = parser.add_argument
    say("--streams", type=several(whole(1, 4000)), default=STREAMS, metavar="N,…", help="how many at a time (200,1000)")
    say("--only", choices=("streams", "floods"), help="one of the two parts")
    say("--seconds", type=number(0.1, linkflood.MOST_S), default=5.0, metavar="S", help="how long each flood lasts (5)")
    say("--quick", action="store_true", help="shorter answers and floods: a first impression")


async def measure(args: argparse.Namespace) -> tuple[Figure, ...]:
    """The figures of the parts that were asked for."""
    steps = Steps("measurements")
    parts = {"streams": len(args.streams) + 2, "floods": len(linkflood.FLOODS) + 1}
    steps.total = sum(count for part, count in parts.items() if args.only in (None, part))
    figures: list[Figure] = []
    if args.only != "floods":
        figures += await _streams(args, steps)
    if args.only != "streams":
        seconds = args.seconds / 2 if args.quick else args.seconds
        figures += await linkflood.figures(seconds, steps.next)
    return tuple(figures)


async def _streams(args: argparse.Namespace, steps: Steps) -> list[Figure]:
    seen = []
    for streams in (1, *args.streams):
        steps.next(f"{streams:,} streams")
        seen.append(await linkstreams.run(plan_for(streams, quick=args.quick)))
    steps.next("where the time goes")
    first = seen[1]
    watched = await linkstreams.run(first.plan, watched=True)
    return [*linkstreams.figures(seen[0], seen[1:]), *linkstreams.breakdown(watched, first.packet_us)]
