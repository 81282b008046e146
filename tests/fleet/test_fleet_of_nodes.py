"""Twelve whole nodes with the echo engine in one process: a bad rollout stops itself, a good one reaches everybody."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from node import served
from node.client import Client, Done, TextDelta
from node.fleet.boot import Upkeep, over
from node.fleet.directive import Rollout
from node.fleet.profile import Profile
from node.fleet.progress import Report, tally
from node.fleet.rollout import place
from node.runtime import Node
from tests.conftest import settings
from tests.support.fleet_node import GOLDEN, TOO_FAST, FakeManager, profile, rollout

NODES = 12
OLD = profile("old", slots=2)


class Fleet:
    """Nodes, their one manager, and what they report; the manager moves on and stops as a manager would."""

    def __init__(self) -> None:
        self.manager = FakeManager()
        self.nodes: dict[str, Node] = {}
        self.reports: dict[str, dict[str, object]] = {}

    async def start(self) -> None:
        await asyncio.gather(*(self._start(f"node-{number}") for number in range(NODES)))

    async def _start(self, name: str) -> None:
        own = settings(engine_kind="echo", engine_slots=2, prewarm_enabled="false", tune_auto="false")
        upkeep = Upkeep(over(own), lambda: OLD)
        upkeep.manager, upkeep.report, upkeep.node_id = self.manager, self._report, name
        await upkeep.open()
        node = Node(await upkeep.prepare(), upkeep=upkeep)
        await node.start()
        self.nodes[name] = node

    async def _report(self, told: object) -> None:
        assert isinstance(told, dict)
        self.reports[told["node"]] = told

    def publish(self, one: Rollout) -> None:
        self.manager.wants(one)
        for node in self.nodes.values():
            node._updater.wake()

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not done():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    def serving(self) -> dict[str, str]:
        return {name: str(node.status()["update"]["profile"]) for name, node in self.nodes.items()}

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(str(told["outcome"]) for told in self.reports.values())

    @property
    def quiet(self) -> bool:
        return all(node.status()["update"]["state"] == "idle" for node in self.nodes.values())

    async def roll_out(self, chosen: Profile) -> list[float]:
        """10 %, 50 %, 100 %, each after the last has ended; stops at the threshold. Gives the stages that it got to."""
        self.manager.add(chosen)
        reached, name = [], f"to-{chosen.name}"
        for revision, percent in enumerate((10.0, 50.0, 100.0), 1):
            stage = rollout(chosen, revision, name=name, percent=percent, probation_s=0.2, abort_percent=34.0)
            reached.append(percent)
            self.publish(stage)
            part = {name for name in self.nodes if place(name, stage.name) < percent}
            await self.until(lambda part=part: part <= self.reports.keys() and self.quiet)  # type: ignore[misc]
            if tally(stage, msgspec.convert(list(self.reports.values()), list[Report])).must_stop:
                self.publish(rollout(chosen, revision + 1, name=name, percent=percent, stopped=True))
                break
        return reached


@pytest.fixture
async def fleet(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    monkeypatch.setattr(served, "LINGER_S", 0.05)
    fleet = Fleet()
    await fleet.start()
    yield fleet
    await asyncio.gather(*(node.stop(grace_s=0) for node in fleet.nodes.values()))


async def ask(node: Node) -> str:
    async with Client(node.url) as client:
        events = [event async for event in client.chat([{"role": "user", "content": "hello"}])]
    assert isinstance(events[-1], Done)
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def test_a_bad_rollout_stops_itself_and_a_good_one_reaches_everybody(fleet: Fleet) -> None:
    bad = profile("bad", slots=3, more=TOO_FAST)  # it loads and answers, and is found out in its probation
    reached = await fleet.roll_out(bad)
    assert reached == [10.0, 50.0]
    tried = {name for name in fleet.nodes if place(name, "to-bad") < 50}
    assert 3 <= len(tried) < NODES
    assert fleet.reports.keys() == tried, "the others never began"
    assert fleet.outcomes == {"rolled back": len(tried)}
    assert set(fleet.serving().values()) == {"old"}
    exchanged = {name for name, node in fleet.nodes.items() if node._served.current.settings is not node._settings}
    assert exchanged == tried, "the others were not touched"
    assert all("promises 1e+06" in str(told["reason"]) for told in fleet.reports.values())

    fleet.reports.clear()
    looks = fleet.manager.looks
    fleet.publish(rollout(bad, 2, name="to-bad", percent=50.0))
    await fleet.until(lambda: fleet.manager.looks >= looks + NODES)
    assert fleet.quiet, "nobody tries again what failed"

    fleet.reports.clear()
    good = profile("good", slots=4, more=GOLDEN)
    assert await fleet.roll_out(good) == [10.0, 50.0, 100.0]
    assert fleet.outcomes == {"committed": NODES}
    assert set(fleet.serving().values()) == {"good"}
    assert {node.model.info.slots for node in fleet.nodes.values()} == {4}
    assert await asyncio.gather(*(ask(node) for node in fleet.nodes.values())) == ["hello"] * NODES
