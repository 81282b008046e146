"""The router before the gate: decisions, headers, sessions, hedges, figures."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from node.errors import Overloaded, Unavailable, UpstreamFailed
from node.generation import Caller, Event, Failed, Finished, Request, Started, TokenSource
from node.mesh.places import Places
from node.mesh.route import LOCAL, Place, Policy
from node.mesh.router import SERVED_BY, RoutedAdmission, Router
from node.settings import Routes
from tests.support.near import Near
from tests.support.service import ByteModel, ScriptedAdmission, ScriptedSource, Step

REQUEST = Request("r", (1, 2, 3), 100, caller=Caller("t", "u", "s"))


class Known(Places):
    """Places whose neighbours are sources of tests."""

    def __init__(self, local: TokenSource, near: Near, peers: dict[str, ScriptedSource], wait_s: list[float]) -> None:
        super().__init__(
            local,
            lambda request: Place(LOCAL, "local", wait_s=wait_s[0]),
            ByteModel(),
            "same",
            near,
            None,
            Routes(),
            chance=lambda: 0.0,
        )
        self._sources = peers

    def source(self, name: str) -> TokenSource:
        return self._sources.get(name) or super().source(name)


class World:
    def __init__(self, *script: Step, hedge_share: float = 0.05, alone: bool = False) -> None:
        self.near = Near()
        self.near.add("a", "http://a")
        self.local, self.peer = ScriptedSource(script or ("x", "y")), ScriptedSource(script or ("x", "y"))
        self.wait_s = [0.0]
        self.closed = False
        places = Known(self.local, self.near, {"peer/a": self.peer}, self.wait_s)
        self.router = Router(self.local, places, Policy(), hedge_share, lambda: self.closed, alone=alone)
        self.heard: list[Event] = []

    async def run(self, request: Request = REQUEST) -> str:
        """One request to its end; gives who answered as the header says it."""
        self.heard.clear()
        over = asyncio.Event()

        def sink(event: Event) -> None:
            self.heard.append(event)
            if isinstance(event, Finished | Failed):
                over.set()

        self.router.submit(request, sink)
        told = self.router.served_by(request.id)
        async with asyncio.timeout(10):
            await over.wait()
        return told()[SERVED_BY]


async def test_a_node_alone_passes_everything_on() -> None:
    world = World(alone=True)
    assert await world.run() == LOCAL
    assert Started(2) in world.heard, "nothing is added"
    assert world.router.status()["decided"][LOCAL] == {"alone": 1}
    world.router.hold("r", True)
    world.router.cancel("r")
    assert (world.local.held, world.local.cancelled) == ([("r", True)], ["r"])


async def test_who_is_quicker_answers_and_is_told() -> None:
    world = World()
    assert await world.run() == LOCAL
    world.wait_s[0] = 3.0
    assert await world.run(replace(REQUEST, caller=Caller())) == "peer/a"
    assert world.heard[0] == Started(2, "peer/a")
    assert not world.router.has("r")
    status = world.router.status()
    assert status["decided"] == {LOCAL: {"fastest": 1}, "peer": {"busy": 1}, "cloud": {}, "later": {}}
    assert "peer/a" in status["upstreams"]


async def test_a_break_is_told_in_header_and_figures() -> None:
    world = World()
    world.wait_s[0] = 3.0
    world.peer.script = ("x", UpstreamFailed("gone"))
    assert await world.run() == "peer/a, local"
    status = world.router.status()
    assert status["failovers"] == {"peer to local": {"count": 1}}
    assert status["pause_p95_s"] >= 0
    assert world.near.doubted == {"a": "gone"}
    assert world.local.submitted[0].continued == (1,)


async def test_a_full_node_overflows_to_its_neighbour() -> None:
    world = World()
    world.local.refusal = Overloaded("full", retry_after=2)
    assert await world.run() == "peer/a"


async def test_a_session_stays_where_it_was() -> None:
    world = World()
    world.wait_s[0] = 3.0
    assert await world.run() == "peer/a"
    world.wait_s[0] = 0.0
    world.near.change("a", decode_s=0.0)
    assert await world.run(replace(REQUEST, caller=Caller("t", "u", "another"))) == LOCAL
    world.wait_s[0] = 0.14
    assert await world.run() == "peer/a"
    world.wait_s[0] = 0.0
    assert await world.run() == LOCAL, "clearly better"


async def test_a_closed_node_refuses_and_drains_what_is_elsewhere() -> None:
    wait = asyncio.Event()
    world = World(wait, "x")
    world.wait_s[0] = 3.0
    running = asyncio.create_task(world.run())
    async with asyncio.timeout(10):
        while not world.peer.submitted:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    world.closed = True
    with pytest.raises(Unavailable):
        world.router.submit(replace(REQUEST, id="late"), lambda event: None)
    draining = asyncio.create_task(world.router.drained())
    await asyncio.sleep(0.01)
    assert not draining.done()
    wait.set()
    await running
    await asyncio.wait_for(draining, 10)


async def test_after_stop_nothing_goes_on_elsewhere() -> None:
    world = World("x", UpstreamFailed("gone"))
    world.wait_s[0] = 3.0
    running = asyncio.create_task(world.run())
    await asyncio.sleep(0)
    world.router.stop()
    await running
    assert isinstance(world.heard[-1], Failed)
    assert not world.local.submitted


async def test_cancel_and_hold_reach_who_answers() -> None:
    world = World(asyncio.Event())
    world.wait_s[0] = 3.0
    heard: list[Event] = []
    world.router.submit(REQUEST, heard.append)
    await asyncio.sleep(0.01)
    world.router.hold("r", True)
    world.router.cancel("r")
    world.router.cancel("unknown")
    await asyncio.sleep(0.01)
    assert world.peer.held == [("r", True)]
    assert world.peer.cancelled == ["r"]
    assert heard == [Finished("cancelled", 3, 0)]


async def test_hedges_stay_within_their_budget() -> None:
    world = World()
    for _ in range(40):
        world.router._budget.request()
        world.router.places.record(LOCAL).spoke(0.01, 0.01, 0.0)
    wait = asyncio.Event()
    world.local.script = (wait, "late")
    world.peer.script = ("first",)
    answered = [await world.run(replace(REQUEST, id=f"slow{number}")) for number in range(2)]
    assert answered == ["local, peer/a"] * 2
    assert world.router.status()["hedges"] == 2
    assert world.router.hedge(REQUEST, {}) is None, "a twentieth of 42 is used up"
    never = World(hedge_share=0.0)
    assert never.router.hedge(REQUEST, {}) is None
    assert world.router.may_hedge(replace(REQUEST, kind="embed"), LOCAL) is None
    assert world.router.may_hedge(REQUEST, "cloud/x") is None


async def test_the_header_goes_with_the_limits() -> None:
    world = World()
    admission = RoutedAdmission(ScriptedAdmission(told={"x-limit": "7"}), world.router)
    world.router.submit(REQUEST, lambda event: None)
    assert admission.headers("r")() == {"x-limit": "7", SERVED_BY: LOCAL}
    assert not admission.recalls
    assert admission.shape(REQUEST) == (REQUEST, ())
    world.router.cancel("r")
