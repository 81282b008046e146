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
import ctypes
import fcntl
import heapq
import itertools
import math
import os
import random
import select
import shlex
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from node.bench.channel import Channel, Conditions, Weather

HOSTS = {"outpost-near": "10.77.0.1", "outpost-far": "10.77.0.2"}
_PID = Path("/run/outpost-lossy-link.pid")
_MTU = 1500
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


class Stop(Exception):
    """Something a person has to mend; the message says how."""


def main(argv: Sequence[str]) -> int:
    """Run a command over a bad path, or set one up."""
    args = _parser().parse_args(argv)
    try:
        if args.verb == "down":
            return down()
        if os.geteuid() != 0:
            raise Stop("Only root may make network namespaces. Try: sudo tools/lossy_link.py …")
        return run(args) if args.verb == "run" else up(args)
    except Stop as stop:
        print(f"lossy_link: {stop}", file=sys.stderr)
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
    with hosts() as devices, relaying(devices, conditions(args), args.seed):
        near = None
        if args.near:
            near = subprocess.Popen([*_inside("outpost-near"), *shlex.split(args.near)])
            with contextlib.suppress(subprocess.TimeoutExpired):
                near.wait(args.wait)
                raise Stop(f"The near command ended with {near.returncode} before the far one began.")
        try:
            return subprocess.run([*_inside("outpost-far"), *args.command], check=False).returncode
        finally:
            if near is not None:
                near.terminate()
                near.wait()


def up(args: argparse.Namespace) -> int:
    """Relay until a signal."""
    if _PID.exists():
        raise Stop("A path is up already. End it with: tools/lossy_link.py down")
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: asked.append(got))
    try:
        with hosts() as devices:
            _PID.write_text(str(os.getpid()))
            print("lossy_link: up. Try: ip netns exec outpost-far ping 10.77.0.1", file=sys.stderr, flush=True)
            Relay(devices, conditions(args), args.seed).carry(lambda: bool(asked))
    finally:
        _PID.unlink(missing_ok=True)
    return 0


def down() -> int:
    """End the `up` that runs."""
    try:
        os.kill(int(_PID.read_text()), signal.SIGTERM)
    except (OSError, ValueError) as error:
        raise Stop("No path is up.") from error
    return 0


def _inside(host: str) -> list[str]:
    return ["ip", "netns", "exec", host]


@contextlib.contextmanager
def hosts() -> Iterator[tuple[int, int]]:
    """Both namespaces with a TUN device each; gives the devices' file descriptors."""
    made: list[str] = []
    devices: list[int] = []
    try:
        for host, address in HOSTS.items():
            _ip("netns", "add", host)
            made.append(host)
            devices.append(_tun(host))
            inside = ("-n", host)
            _ip(*inside, "address", "add", f"{address}/24", "dev", "path")
            _ip(*inside, "link", "set", "path", "mtu", str(_MTU), "up")
            _ip(*inside, "link", "set", "lo", "up")
            subprocess.run(
                [*_inside(host), "sysctl", "-qw", "net.ipv4.tcp_no_metrics_save=1", "net.ipv6.conf.all.disable_ipv6=1"],
                check=False,
                stderr=subprocess.DEVNULL,
            )
        yield devices[0], devices[1]
    finally:
        for device in devices:
            os.close(device)
        for host in made:
            _ip("netns", "delete", host)


def _ip(*words: str) -> None:
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Stop("`ip` is missing. On Debian: apt install iproute2") from error
    if done.returncode:
        raise Stop(f"`ip {' '.join(words)}` failed: {done.stderr.strip()}")


def _tun(host: str) -> int:
    """A TUN device called `path` inside a namespace."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{host}", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if libc.setns(there, _CLONE_NEWNET):
            raise Stop(f"Cannot enter {host}: {os.strerror(ctypes.get_errno())}.")
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"path", _IFF_TUN | _IFF_NO_PI))
    except OSError as error:
        raise Stop(f"Cannot make a TUN device: {error.strerror}.") from error
    finally:
        libc.setns(home, _CLONE_NEWNET)
        os.close(home)
        os.close(there)
    return device


class Relay:
    """Carries packets between two devices as the conditions say."""

    def __init__(self, devices: tuple[int, int], what: Conditions, seed: int | None) -> None:
        rng = random.Random(seed)
        weather = Weather(what, random.Random(rng.random()))
        self._ways = {
            devices[0]: (devices[1], Channel(what, weather, rng)),
            devices[1]: (devices[0], Channel(what, weather, rng)),
        }
        self._heap: list[tuple[float, int, int, bytes]] = []
        self._order = itertools.count()

    def carry(self, stopped: object) -> None:
        """Until `stopped()`."""
        assert callable(stopped)
        while not stopped():
            now = time.monotonic()
            while self._heap and self._heap[0][0] <= now:
                _, _, device, data = heapq.heappop(self._heap)
                with contextlib.suppress(OSError):  # a device whose queue is full loses packets, as any does
                    os.write(device, data)
            wait = min(0.2, self._heap[0][0] - now) if self._heap else 0.2
            for device in select.select(list(self._ways), [], [], wait)[0]:
                self._take(device)

    def _take(self, device: int) -> None:
        other, channel = self._ways[device]
        for _ in range(64):
            try:
                data = os.read(device, 1 << 16)
            except BlockingIOError:
                return
            if data[0] >> 4 != 4:
                continue  # IPv6 is off; what comes is neighbour discovery
            for when, copy in channel.carry(data, time.monotonic(), header=0):
                heapq.heappush(self._heap, (when, next(self._order), other, copy))


@contextlib.contextmanager
def relaying(devices: tuple[int, int], what: Conditions, seed: int | None) -> Iterator[None]:
    """A relay in a process of its own, so that nothing here holds packets up."""
    child = os.fork()
    if child == 0:
        parent = os.getppid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        Relay(devices, what, seed).carry(lambda: os.getppid() != parent)
        os._exit(0)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
