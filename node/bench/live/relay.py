"""The path between two hosts: a process that takes packets from one TUN device and puts them into the other, as
conditions say. `python -m node.bench.live.relay CONDITIONS DEVICE DEVICE [SEED]` ends when its parent does, or by
SIGTERM, and then tells on stdout what it `Carried`.

It runs with real-time priority where it may: a path must not be late because the machine is busy.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import math
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import msgspec

from node.bench.channel import Channel, Conditions, Weather

_HOUSE = Path(__file__).resolve().parents[3]  # where the package `node` lies
_AT_ONCE = 64
_LONGEST_S = 0.2
_PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp"}
_STOP_S = 5.0

Traffic = dict[str, tuple[int, int]]  # "udp 5000" -> packets, bytes: both directions, IP headers and lost ones included


class Carried(msgspec.Struct):
    """What a relay saw: traffic by protocol and port of the near host, and when the path was bad (monotonic time)."""

    traffic: Traffic = {}
    bad: list[tuple[float, float]] = []


class Relay:
    """Carries packets between two devices, the near host's first."""

    def __init__(self, devices: tuple[int, int], what: Conditions, seed: int | None) -> None:
        rng = random.Random(seed)
        self._weather = weather = Weather(what, random.Random(rng.random()))
        self._near = devices[0]
        self._ways = {
            devices[0]: (devices[1], Channel(what, weather, rng)),
            devices[1]: (devices[0], Channel(what, weather, rng)),
        }
        self._heap: list[tuple[float, int, int, bytes]] = []
        self._order = itertools.count()
        self.carried = Carried(bad=self._weather.moments)

    def carry(self, stopped: Callable[[], bool]) -> None:
        """Until `stopped()`."""
        while not stopped():
            now = time.monotonic()
            while self._heap and self._heap[0][0] <= now:
                _, _, device, data = heapq.heappop(self._heap)
                with contextlib.suppress(OSError):  # a device whose queue is full loses packets, as any does
                    os.write(device, data)
            wait = min(_LONGEST_S, self._heap[0][0] - now) if self._heap else _LONGEST_S
            for device in select.select(list(self._ways), [], [], max(0.0, wait))[0]:
                self._take(device)

    def _take(self, device: int) -> None:
        other, channel = self._ways[device]
        for _ in range(_AT_ONCE):
            try:
                data = os.read(device, 1 << 16)
            except BlockingIOError:
                return
            if data[0] >> 4 != 4:
                continue  # IPv6 is off; what comes is neighbour discovery
            self._count(data, from_near=device == self._near)
            for when, copy in channel.carry(data, time.monotonic(), header=0):
                heapq.heappush(self._heap, (when, next(self._order), other, copy))

    def _count(self, data: bytes, *, from_near: bool) -> None:
        name = flow(data, from_near=from_near)
        packets, size = self.carried.traffic.get(name, (0, 0))
        self.carried.traffic[name] = packets + 1, size + len(data)


def flow(data: bytes, *, from_near: bool) -> str:
    """What an IPv4 packet belongs to: its protocol and the near host's port."""
    protocol = _PROTOCOLS.get(data[9], str(data[9]))
    at = 4 * (data[0] & 0x0F) + (0 if from_near else 2)
    return f"{protocol} {int.from_bytes(data[at : at + 2], 'big')}" if protocol in ("tcp", "udp") else protocol


class Running:
    """A relay in a process of its own."""

    def __init__(self, devices: tuple[int, int], what: Conditions, seed: int | None) -> None:
        told = json.dumps({key: value for key, value in asdict(what).items() if value != math.inf})
        words = [told, *map(str, devices), *([] if seed is None else [str(seed)])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, *words],
            pass_fds=devices,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_HOUSE), os.environ.get("PYTHONPATH", "")])},
        )
        assert self._process.stdout is not None, "what it says is piped"
        self._process.stdout.readline()  # it carries

    def stop(self) -> Carried:
        """End it; gives what it carried, nothing where it does not tell."""
        self._process.terminate()
        try:
            said, _ = self._process.communicate(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return Carried()
        return msgspec.json.decode(said or b"{}", type=Carried)


@contextlib.contextmanager
def relaying(devices: tuple[int, int], what: Conditions, seed: int | None) -> Iterator[Running]:
    """A relay, for a while."""
    running = Running(devices, what, seed)
    try:
        yield running
    finally:
        running.stop()


def main(words: list[str]) -> int:
    """The relay's process."""
    what = msgspec.json.decode(words[0], type=Conditions)
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    parent = os.getppid()
    relay = Relay((int(words[1]), int(words[2])), what, int(words[3]) if words[3:] else None)
    print("carrying", flush=True)  # noqa: T201  # its parent waits for it
    relay.carry(lambda: bool(asked) or os.getppid() != parent)
    print(msgspec.json.encode(relay.carried).decode(), flush=True)  # noqa: T201  # its parent reads it
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
