#!/usr/bin/env python3
"""A bad network on one machine: two hosts with a path between them that delays, loses, reorders and damages packets.

    tools/lossy_link.py run --rtt 150 --loss 5 --near 'outpost serve --host 10.77.0.1 …' -- outpost ask --url …
    tools/lossy_link.py up --rtt 600 --loss 5 --burst 150        then: ip netns exec outpost-far COMMAND
    tools/lossy_link.py down

The hosts are network namespaces, outpost-near (10.77.0.1) and outpost-far (10.77.0.2), each with a TUN device; a relay
between the devices is the path, so that no kernel emulator is needed and every protocol can be sent. Losses are
independent, or with --burst come in bad moments of so many milliseconds (Gilbert–Elliott, clocked by time: whoever
sends more in one loses more), shared by both directions. Needs root and iproute2. Everything is gone after the run.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from node.bench.channel import Conditions
from node.bench.live.hosts import hosts, obstacle
from node.bench.live.relay import Relay, relaying
from node.errors import OperatorError

_PID = Path("/run/outpost-lossy-link.pid")


def main(argv: Sequence[str]) -> int:
    """Run a command over a bad path, or set one up."""
    args = _parser().parse_args(argv)
    try:
        if args.verb == "down":
            return down()
        if why := obstacle():
            raise OperatorError(f"No path can be made here: {why}.")
        return run(args) if args.verb == "run" else up(args)
    except OperatorError as error:
        print(f"lossy_link: {error.message} {error.hint or ''}".rstrip(), file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("run", help="run a command on the far host")
    one.add_argument("--near", metavar="COMMAND", help="what runs on the near host meanwhile")
    one.add_argument("--wait", type=float, default=5.0, metavar="S", help="seconds the near command gets to start (5)")
    one.add_argument("command", nargs="+", metavar="COMMAND")
    for verb in (
        one,
        verbs.add_parser("up", help="set the hosts up and stay in the foreground until `down` or Ctrl-C"),
    ):
        say = verb.add_argument
        say("--rtt", type=_number, default=50.0, metavar="MS", help="round trip (50)")
        say("--loss", type=_number, default=0.0, metavar="%%", help="packets lost (0)")
        say("--burst", type=_number, default=0.0, metavar="MS", help="mean length of a bad moment; 0: independent (0)")
        say("--jitter", type=_number, default=0.0, metavar="MS", help="up to so much more delay (0)")
        say("--rate", type=_number, default=0.0, metavar="KBIT", help="kbit/s in each direction; 0: unlimited (0)")
        say("--reorder", type=_number, default=0.0, metavar="%%", help="packets that come up to 20 ms late (0)")
        say("--duplicate", type=_number, default=0.0, metavar="%%", help="packets that come twice (0)")
        say(
            "--corrupt",
            type=_number,
            default=0.0,
            metavar="%%",
            help="packets with a flipped bit, which checksums find (0)",
        )
        say("--seed", type=int, default=None, metavar="N", help="the same weather each time")
    verbs.add_parser("down", help="end an `up`")
    return parser


def _number(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number from 0")
    return value


def conditions(args: argparse.Namespace) -> Conditions:
    """The path that the command line describes."""
    return Conditions(
        rtt=args.rtt / 1000,
        loss=args.loss / 100,
        burst_s=args.burst / 1000,
        jitter=args.jitter / 1000,
        rate=args.rate * 125 or math.inf,
        duplicate=args.duplicate / 100,
        corrupt=args.corrupt / 100,
        reorder=args.reorder / 100,
    )


def run(args: argparse.Namespace) -> int:
    """The command's exit code, after everything was taken down."""
    with hosts() as two, relaying(two.devices, conditions(args), args.seed):
        near = None
        if args.near:
            near = subprocess.Popen([*two.inside(far=False), *shlex.split(args.near)])
            with contextlib.suppress(subprocess.TimeoutExpired):
                near.wait(args.wait)
                raise OperatorError(f"The near command ended with {near.returncode} before the far one began.")
        try:
            return subprocess.run([*two.inside(far=True), *args.command], check=False).returncode
        finally:
            if near is not None:
                near.terminate()
                near.wait()


def up(args: argparse.Namespace) -> int:
    """Relay until a signal."""
    if _PID.exists():
        raise OperatorError("A path is up already. End it with: tools/lossy_link.py down")
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: asked.append(got))
    try:
        with hosts() as two:
            _PID.write_text(str(os.getpid()))
            print("lossy_link: up. Try: ip netns exec outpost-far ping 10.77.0.1", file=sys.stderr, flush=True)
            Relay(two.devices, conditions(args), args.seed).carry(lambda: bool(asked))
    finally:
        _PID.unlink(missing_ok=True)
    return 0


def down() -> int:
    """End the `up` that runs."""
    try:
        os.kill(int(_PID.read_text()), signal.SIGTERM)
    except (OSError, ValueError) as error:
        raise OperatorError("No path is up.") from error
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
