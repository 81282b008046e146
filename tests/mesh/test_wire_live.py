"""Nodes as processes on hosts of their own, joined by a wire: who sees whom, and how soon.

The usual run has light nodes (the mesh without a model) and waits generously, because the machine is busy with a whole
suite. OUTPOST_TEST_MESH=full takes five whole nodes (`python -m node serve`) and holds them to what is promised, and
measures what twenty idle ones send; run it on a machine that does nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.mesh.identity import Identity
from tests.mesh.fleets import Fleet
from tests.support.namespaces import Wire, skip_unless_possible

FULL = os.environ.get("OUTPOST_TEST_MESH") == "full"
PATIENCE = 1.0 if FULL else 12.0  # what a promise is multiplied by
FLEET_MATES = 5 if FULL else 4
SERVE = "serve --engine echo --set tune.auto=false --set streams.durability=off".split()
ASK = json.dumps({"model": "echo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}).encode()


class Town:
    """Nodes on a wire, by the number of their host."""

    def __init__(self, wire: Wire, folder: Path, *, light: bool = not FULL) -> None:
        self.wire, self.folder, self.light = wire, folder, light
        self.fleet = Fleet(folder / "fleet")
        self.ids: dict[int, str] = {}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, number: int, who: Identity, *, light: bool | None = None) -> None:
        """Start a node on a host; `who` decides whose it is."""
        self.ids[number] = who.id
        home = self.folder / f"home{number}"
        home.mkdir()
        (home / "mesh").symlink_to(who.key.parent)
        light = self.light if light is None else light
        words = ["tests.support.light_node", str(home / "mesh")] if light else ["node", *SERVE]
        command = [sys.executable, "-m", *words]
        self.processes[number] = self.wire.start(number, command, self.log(number), OUTPOST_HOME=str(home))

    def mates(self, count: int) -> None:
        """Nodes of the fleet on the first hosts; waits until all of them answer."""
        for number in range(1, count + 1):
            self.start(number, self.fleet.node(f"n{number}"))
        within(400, lambda: all(self._answers(number) for number in range(1, count + 1)))

    def _answers(self, number: int) -> bool:
        assert self.processes[number].poll() is None, self.log(number).read_text()[-2000:]
        return self.mesh(number) is not None

    def log(self, number: int) -> Path:
        return self.folder / f"log{number}"

    def mesh(self, number: int) -> dict[str, Any] | None:
        """What a node says of its neighbours; None while it does not answer."""
        status = self._get(number, "/v1/status")
        return None if status is None else status["mesh"]

    def sees(self, number: int, *others: int) -> bool:
        """Whether those, and no others, are alive to it."""
        found = (self.mesh(number) or {}).get("neighbours", {})
        alive = {id for id, row in found.items() if row["state"] == "alive"}
        return alive == {self.ids[other] for other in others}

    def use(self, number: int) -> None:
        """Give a node something to do, so that its neighbours are in use."""
        if self.light:
            self._get(number, "/v1/status?use=1")
        else:
            self._get(number, "/v1/chat/completions", ASK)

    def chooses_from(self, number: int) -> set[str]:
        """Whom it would choose from for a new request."""
        self.use(number)
        found = (self.mesh(number) or {}).get("neighbours", {})
        return {id for id, row in found.items() if row["state"] == "alive"}

    def _get(self, number: int, path: str, body: bytes | None = None) -> Any:
        def get() -> Any:
            request = urllib.request.Request(f"http://127.0.0.1:8080{path}", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=10) as response:
                return json.load(response)

        try:
            return self.wire.on(number, get)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None


def within(seconds: float, true: Callable[[], object]) -> float:
    """After how many seconds it was so; fails when it was not so in time."""
    begun = time.monotonic()
    while not true():
        assert time.monotonic() - begun < seconds, f"it was not so within {seconds:g} s"
        time.sleep(0.05)
    return time.monotonic() - begun


def promised(what: str, limit_s: float, true: Callable[[], object]) -> None:
    """It is so within `limit_s`, or, where the machine may be busy, some times that; the figure is printed."""
    seen_s = within(limit_s * PATIENCE, true)
    sys.stdout.write(f"{what}: {seen_s:.2f} s (promised {limit_s:g} s)\n")


def test_found_killed_unplugged_and_strangers(tmp_path: Path) -> None:
    skip_unless_possible()
    mates = range(1, FLEET_MATES + 1)
    stranger, late = FLEET_MATES + 1, FLEET_MATES + 2
    with Wire(FLEET_MATES + 2) as wire:
        town = Town(wire, tmp_path)
        town.start(stranger, Fleet(tmp_path / "others").node("stranger"), light=True)
        town.start(late, town.fleet.wrong("expired"), light=True)
        town.mates(FLEET_MATES)
        promised(
            "all see each other",
            5,
            lambda: all(town.sees(number, *(other for other in mates if other != number)) for number in mates),
        )
        # One is killed: no goodbye.
        os.kill(town.processes[2].pid, signal.SIGKILL)
        promised("a killed one is not chosen", 2, lambda: town.ids[2] not in town.chooses_from(1))

        def forgotten() -> bool:
            return town.ids[2] not in (town.mesh(1) or {})["neighbours"]

        if FULL:
            promised("and out of the table", 13, forgotten)
        # A cable is pulled, which closes no connection, and plugged in again.
        rest = [number for number in mates if number not in (1, 2)]
        within(30, lambda: town.chooses_from(1) >= {town.ids[number] for number in rest})
        wire.plug(rest[0], False)
        promised("an unplugged one is not chosen", 2, lambda: town.ids[rest[0]] not in town.chooses_from(1))
        if FULL:  # else it is suspect only, which saves ten seconds
            within(30, lambda: town.ids[rest[0]] not in (town.mesh(1) or {})["neighbours"])
        wire.plug(rest[0], True)
        promised("plugged in again it is found", 10, lambda: town.ids[rest[0]] in town.chooses_from(1))
        promised("and finds the others", 10, lambda: town.sees(rest[0], 1, *rest[1:]))
        if not FULL:  # it had the time to be forgotten in the meantime
            promised("the killed one is out of the table", 13, forgotten)
        # Who is not of the fleet, or not any more, was seen by nobody at any time.
        for number in (stranger, late):
            shown = town.mesh(number)
            assert shown is not None
            assert shown["neighbours"] == {}, "and sees nobody"
        for number in (1, *rest):
            told = town.log(number).read_text()
            assert town.ids[stranger] not in told
            assert f'"a neighbour is found", "node": "{town.ids[late]}"' not in told
        assert "its certificate is over" in town.log(1).read_text()
        # Goodbye is a goodbye.
        town.processes[rest[0]].send_signal(signal.SIGTERM)
        promised("one that stops is not chosen", 5, lambda: town.ids[rest[0]] not in town.chooses_from(1))


def test_a_wire_with_ipv6_only(tmp_path: Path) -> None:
    skip_unless_possible()
    with Wire(2, ipv4=False) as wire:
        town = Town(wire, tmp_path, light=True)
        town.mates(2)
        promised("two see each other by link-local addresses", 5, lambda: town.sees(1, 2) and town.sees(2, 1))


@pytest.mark.skipif(not FULL, reason="twenty processes for two minutes: OUTPOST_TEST_MESH=full")
@pytest.mark.timeout(900)
def test_twenty_idle_nodes_hardly_talk(tmp_path: Path) -> None:
    skip_unless_possible()
    count, seconds = 20, 60.0
    with Wire(count) as wire:
        town = Town(wire, tmp_path, light=True)
        town.mates(count)
        everybody = range(1, count + 1)
        within(200, lambda: all((town.mesh(number) or {}).get("alive") == count - 1 for number in everybody))
        time.sleep(40)  # what is said at the beginning has been said
        before, begun = [wire.sent_bytes(number) for number in everybody], time.monotonic()
        time.sleep(seconds)
        after, took = [wire.sent_bytes(number) for number in everybody], time.monotonic() - begun
        rates = [(late - early) / took for early, late in zip(before, after, strict=True)]
        sys.stdout.write(f"{count} idle nodes: {sum(rates):.0f} B/s in all, at most {max(rates):.0f} B/s of one\n")
        assert all((town.mesh(number) or {}).get("alive") == count - 1 for number in everybody)
        assert sum(rates) < 2000
