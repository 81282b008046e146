"""One condition on the live path: every scheme's replies at the same time, over the same weather.

Each scheme has a process at each end; all share the path, which is as wide as is asked for. Where the path is narrow,
let one scheme run alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec

from node.bench.channel import Conditions
from node.bench.linkworld import Outcome, Reply, Talk
from node.bench.live import script as scripts
from node.bench.live.ends import PORTS, READY
from node.bench.live.hosts import Hosts, hosts
from node.bench.live.relay import Carried, Traffic, relaying
from node.bench.live.script import Log, Script
from node.errors import OperatorError

_HOUSE = Path(__file__).resolve().parents[3]  # where the package `node` lies
_SPARE_S = 20.0


@dataclass(slots=True)
class Seen:
    """What came of a cell: every scheme's replies, and the far ends' logs and the path that they were made of."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    far: dict[str, Log] = field(default_factory=dict)
    path: Carried = field(default_factory=Carried)


class _End:
    """One process."""

    def __init__(self, two: Hosts, script: Script, *, far: bool) -> None:
        self._far = far
        words = [sys.executable, "-m", "node.bench.live.ends", "far" if far else "near"]
        self._process = subprocess.Popen(
            [*two.inside(far), *words, msgspec.json.encode(script).decode()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_HOUSE), os.environ.get("PYTHONPATH", "")])},
        )

    @property
    def _said(self) -> IO[bytes]:
        assert self._process.stdout is not None, "what it says is piped"
        return self._process.stdout

    def ready(self) -> None:
        """Wait until it works; raises OperatorError where it does not."""
        if self._said.readline().strip() != READY.encode():
            raise OperatorError("An end of the live path did not start; its error stands above.")

    def log(self, seconds: float) -> Log:
        """What it saw; a near end is stopped first."""
        if not self._far:
            self._process.terminate()
        try:
            said, _ = self._process.communicate(timeout=seconds)
            return msgspec.json.decode(said, type=Log)
        except (subprocess.TimeoutExpired, msgspec.DecodeError) as error:
            raise OperatorError("An end of the live path did not end as it should.") from error

    def kill(self) -> None:
        """End it, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def play(conditions: Conditions, scripts_: Sequence[Script], seed: int) -> Seen:
    """All scripts at the same time on one path; paths with other seeds may be there meanwhile. Needs root."""
    seen = Seen()
    with ExitStack() as stack:
        two = stack.enter_context(hosts(f"outpost-{os.getpid()}-{seed}"))
        relay = stack.enter_context(relaying(two.devices, conditions, seed))
        nears = [_started(stack, two, script, far=False) for script in scripts_]
        fars = [_started(stack, two, script, far=True) for script in scripts_]
        came = [end.log(script.deadline_s + _SPARE_S) for end, script in zip(fars, scripts_, strict=True)]
        made = [end.log(_SPARE_S) for end in nears]
        seen.path = relay.stop()
    for script, there, here in zip(scripts_, made, came, strict=True):
        seen.far[script.scheme] = here
        seen.outcomes[script.scheme] = outcome(script, there, here, seen.path.traffic, conditions.rtt / 2)
    return seen


def _started(stack: ExitStack, two: Hosts, script: Script, *, far: bool) -> _End:
    end = _End(two, script, far=far)
    stack.callback(end.kill)
    if not far:
        end.ready()
    return end


def outcome(script: Script, made: Log, came: Log, traffic: Traffic, delay: float) -> Outcome:
    """A scheme's replies, as the simulator would give them; bytes are the path's, first replies included."""
    replies = [
        Reply(made.times[reply], came.times.get(reply, []), reply in came.whole)
        for reply in sorted(made.times)
        if scripts.counted(reply) and len(made.times[reply]) > 1
    ]
    size = sum(count for name, (_, count) in traffic.items() if name.split()[-1] == str(script.port))
    chunks = sum(map(len, made.times.values()))
    return Outcome(tuple(replies), size / max(1, chunks), delay)


def script_for(scheme: str, talk: Talk, readers: int, *, deadline_s: float = 120.0, priority: bool = False) -> Script:
    """A scheme's part in a cell, on a port of its own."""
    return Script(scheme, PORTS[scheme], talk, readers, deadline_s, priority)
