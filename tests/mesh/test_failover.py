"""One stream out of several places: continued token by token, hedged, given up."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace

import pytest

from node.errors import EngineFailed, Expired, Filtered, InvalidRequest, NodeError, Overloaded, UpstreamFailed
from node.generation import Event, Failed, Finished, Request, Sink, Started, Token
from node.mesh.failover import Relay
from node.mesh.record import Record
from node.mesh.route import LATER, LOCAL, Decision

PLACES = (LOCAL, "peer/a", "peer/b", "cloud/x")
REQUEST = Request("r", (7, 8, 9), 20)


class Counting:
    """Makes token N as a function of N alone, as greedy and seeded choice do; breaks where it is told to."""

    def __init__(self) -> None:
        self.running: dict[str, tuple[Request, Sink]] = {}
        self.submitted: list[Request] = []
        self.cancelled: list[str] = []
        self.held: list[bool] = []
        self.refusal: NodeError | None = None

    def submit(self, request: Request, sink: Sink) -> None:
        if self.refusal:
            raise self.refusal
        self.submitted.append(request)
        self.running[request.id] = request, sink

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        if entry := self.running.pop(request_id, None):
            asyncio.get_running_loop().call_soon(entry[1], Finished("cancelled", 3, 0))

    def hold(self, request_id: str, held: bool) -> None:
        self.held.append(held)

    def begin(self, cached: int = 0) -> None:
        self._sink(Started(cached))

    def make(self, count: int) -> None:
        """So many more tokens."""
        request, sink = self.running["r"]
        for _ in range(count):
            number = len(request.continued)
            request = replace(request, continued=(*request.continued, number * 3))
            self.running["r"] = request, sink
            sink(Token(number * 3, b"%d " % number))

    def finish(self, reason: str = "length") -> None:
        self._sink(Finished(reason, 0, 0))  # type: ignore[arg-type]
        self.running.pop("r", None)

    def fail(self, error: NodeError | None = None) -> None:
        sink = self._sink
        self.running.pop("r")
        sink(Failed(error or UpstreamFailed("gone")))

    @property
    def _sink(self) -> Sink:
        return self.running["r"][1]


@dataclass
class World:
    """A desk that takes the places in order, and the places themselves."""

    order: tuple[str, ...] = PLACES
    hedge_after: float | None = None
    now: float = 0.0
    sources: dict[str, Counting] = field(default_factory=lambda: {name: Counting() for name in PLACES})
    records: dict[str, Record] = field(default_factory=lambda: {name: Record() for name in PLACES})
    heard: list[Event] = field(default_factory=list)
    failures: list[tuple[str, NodeError]] = field(default_factory=list)
    pauses: list[tuple[str, str, float]] = field(default_factory=list)
    closed: list[list[str]] = field(default_factory=list)

    @property
    def places(self) -> World:
        return self

    def clock(self) -> float:
        return self.now

    def source(self, name: str) -> Counting:
        return self.sources[name]

    def record(self, name: str) -> Record:
        return self.records[name]

    def failed(self, name: str, error: NodeError) -> None:
        self.failures.append((name, error))

    def decide(self, request: Request, tried: dict[str, str]) -> Decision:
        left = [name for name in self.order if name not in tried]
        return Decision(left[0], "fastest") if left else Decision(LATER, "nobody", blocked=dict(tried))

    def may_hedge(self, request: Request, place: str) -> float | None:
        return self.hedge_after

    def hedge(self, request: Request, tried: dict[str, str]) -> str | None:
        return next((name for name in self.order if name not in tried), None)

    def paused(self, gone: str, to: str, seconds: float) -> None:
        self.pauses.append((gone, to, seconds))

    def ended(self, request: Request, places: list[str]) -> None:
        self.closed.append(list(places))

    def start(self, request: Request = REQUEST) -> Relay:
        relay = Relay(request, self.heard.append, self)  # type: ignore[arg-type]
        relay.start(self.decide(request, {}))
        return relay

    @property
    def tokens(self) -> list[int]:
        return [event.id for event in self.heard if isinstance(event, Token)]

    @property
    def told(self) -> list[str]:
        return [event.place for event in self.heard if isinstance(event, Started)]


async def test_one_place_answers() -> None:
    world = World()
    world.start()
    source = world.sources[LOCAL]
    source.begin(cached=2)
    source.make(20)
    source.finish()
    assert world.heard[0] == Started(2, LOCAL)
    assert world.tokens == [number * 3 for number in range(20)]
    assert world.heard[-1] == Finished("length", 3, 20)
    assert world.closed == [[LOCAL]]
    assert all(record.running == 0 for record in world.records.values())


@pytest.mark.parametrize("seed", range(30))
async def test_wherever_places_break_there_is_one_text(seed: int) -> None:
    chance = random.Random(seed)
    world = World()
    world.start(replace(REQUEST, continued=(0, 3)))
    made = 2
    for place in PLACES[:-1]:
        source = world.sources[place]
        assert source.submitted[0].continued == tuple(number * 3 for number in range(made))
        if chance.random() < 0.8:
            source.begin()
        more = chance.randint(0, 6 - 1)
        source.make(min(more, 19 - made))
        made = min(19, made + more)
        source.fail(chance.choice([UpstreamFailed("x"), EngineFailed("y")]))
    last = world.sources["cloud/x"]
    last.make(20 - made)
    last.finish("stop")
    assert world.tokens == [number * 3 for number in range(2, 20)]
    assert world.heard[-1] == Finished("stop", 3, 20)
    assert len([event for event in world.heard if not isinstance(event, Token | Started)]) == 1
    assert all(record.running == 0 for record in world.records.values())


async def test_the_pause_and_who_spoke_are_told() -> None:
    world = World(order=("peer/a", LOCAL))
    world.start()
    world.sources["peer/a"].begin(cached=3)
    world.now = 1.0
    world.sources["peer/a"].make(5)
    world.now = 1.5
    world.sources["peer/a"].fail()
    world.now = 1.75
    world.sources[LOCAL].begin(cached=8)
    world.sources[LOCAL].make(1)
    assert world.pauses == [("peer/a", LOCAL, 0.75)]
    assert world.told == ["peer/a", LOCAL]
    assert [event.cached_tokens for event in world.heard if isinstance(event, Started)] == [3, 3]
    assert [name for name, _ in world.failures] == ["peer/a"]


async def test_what_a_place_says_after_it_was_given_up_is_not_heard() -> None:
    world = World(order=("peer/a", LOCAL))
    world.start()
    late = world.sources["peer/a"]
    late.make(2)
    sink = late.running["r"][1]
    late.fail()
    sink(Token(99, b"late"))
    sink(Failed(UpstreamFailed("again")))
    world.sources[LOCAL].make(18)
    world.sources[LOCAL].finish()
    sink(Finished("stop", 1, 1))
    assert world.tokens == [number * 3 for number in range(20)]
    assert len(world.failures) == 1


async def test_an_end_that_was_lost_is_found_again_by_counting() -> None:
    world = World(order=("peer/a",))
    world.start()
    world.sources["peer/a"].make(20)
    world.sources["peer/a"].fail()
    assert world.heard[-1] == Finished("length", 3, 20)


async def test_one_that_says_too_much_is_cut_off() -> None:
    world = World(order=("peer/a",))
    world.start()
    world.sources["peer/a"].make(21)
    assert len(world.tokens) == 20
    assert world.heard[-1] == Finished("length", 3, 20)
    assert "more than it was asked" in world.failures[0][1].message


async def test_when_nobody_is_left_the_last_error_is_told() -> None:
    world = World(order=("peer/a", "peer/b"))
    world.start()
    world.sources["peer/a"].fail()
    world.sources["peer/b"].fail(EngineFailed("broke"))
    (end,) = world.heard
    assert isinstance(end, Failed)
    assert end.error.message == "broke"
    assert world.closed == [["peer/a"]]


async def test_a_refusal_moves_on_at_once_and_this_nodes_own_word_counts() -> None:
    world = World(order=(LOCAL, "peer/a"))
    world.sources[LOCAL].refusal = Overloaded("full here", retry_after=3)
    world.start()
    assert world.sources["peer/a"].submitted
    both = World(order=(LOCAL, "peer/a"))
    both.sources[LOCAL].refusal = Overloaded("full here", retry_after=3)
    both.sources["peer/a"].refusal = UpstreamFailed("gone")
    with pytest.raises(Overloaded, match="full here"):
        both.start()
    assert both.closed == [[]]


FINAL: list[tuple[str, NodeError]] = [
    (LOCAL, InvalidRequest("wrong")),
    (LOCAL, Expired("too late")),
    ("cloud/x", Filtered("no")),
]


@pytest.mark.parametrize(("place", "error"), FINAL)
async def test_what_others_cannot_mend_is_final(place: str, error: NodeError) -> None:
    world = World(order=(place, "peer/b"))
    world.start()
    world.sources[place].fail(error)
    assert world.heard == [Failed(error)]
    assert not world.sources["peer/b"].submitted


async def test_a_neighbours_refusal_of_a_request_is_not_final() -> None:
    world = World(order=("peer/a", LOCAL))
    world.start()
    world.sources["peer/a"].fail(InvalidRequest("too long for me"))
    assert world.sources[LOCAL].submitted


async def test_at_most_four_places_are_asked() -> None:
    names = tuple(f"peer/{number}" for number in range(9))
    world = World(order=names, sources={n: Counting() for n in names}, records={n: Record() for n in names})
    world.start()
    for name in names[:4]:
        world.sources[name].fail()
    assert isinstance(world.heard[-1], Failed)
    assert not world.sources["peer/4"].submitted


async def test_cancel_stops_who_speaks_and_is_told_once() -> None:
    world = World()
    relay = world.start()
    world.sources[LOCAL].make(2)
    relay.cancel()
    relay.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert world.heard[-1] == Finished("cancelled", 3, 2)
    assert len(world.heard) == 4
    assert world.sources[LOCAL].cancelled == ["r"]
    assert not world.sources["peer/a"].submitted


async def test_a_held_request_is_held_wherever_it_goes() -> None:
    world = World()
    relay = world.start()
    relay.hold(True)
    world.sources[LOCAL].fail(EngineFailed("broke"))
    assert world.sources[LOCAL].held == [True]
    assert world.sources["peer/a"].held == [True]
    relay.hold(False)
    assert world.sources["peer/a"].held == [True, False]


async def until(world: World, place: str) -> None:
    async with asyncio.timeout(10):
        while not world.sources[place].submitted:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_late_first_token_has_a_second_one_asked_and_the_first_who_speaks_is_heard() -> None:
    world = World(order=("peer/a", LOCAL), hedge_after=0.01)
    world.start()
    world.sources["peer/a"].begin()
    await until(world, LOCAL)
    world.sources[LOCAL].make(1)
    assert world.sources["peer/a"].cancelled == ["r"]
    world.sources[LOCAL].make(19)
    world.sources[LOCAL].finish()
    assert world.told == [LOCAL]
    assert world.tokens == [number * 3 for number in range(20)]
    await asyncio.sleep(0)
    assert world.heard[-1] == Finished("length", 3, 20)
    assert not world.failures, "who was only slower did not fail"


async def test_a_hedge_that_fails_changes_nothing() -> None:
    world = World(order=("peer/a", "peer/b"), hedge_after=0.01)
    world.start()
    await until(world, "peer/b")
    world.sources["peer/b"].fail()
    assert not world.heard
    world.sources["peer/a"].make(1)
    assert world.told == ["peer/a"]


async def test_who_speaks_in_time_is_not_hedged() -> None:
    world = World(order=("peer/a", LOCAL), hedge_after=0.01)
    world.start()
    world.sources["peer/a"].make(1)
    await asyncio.sleep(0.05)
    assert not world.sources[LOCAL].submitted


async def hedged(world: World) -> None:
    """This node was slower than a neighbour, which speaks."""
    world.start()
    await until(world, "peer/a")
    world.sources["peer/a"].make(3)


async def test_who_was_only_slower_goes_on_when_the_faster_one_breaks_off() -> None:
    world = World(order=(LOCAL, "peer/a"), hedge_after=0.01)
    await hedged(world)
    await asyncio.sleep(0)  # this node lets go of it
    world.sources["peer/a"].fail()
    assert world.sources[LOCAL].submitted[-1].continued == (0, 3, 6)
    world.sources[LOCAL].make(17)
    world.sources[LOCAL].finish()
    assert world.tokens == [number * 3 for number in range(20)]
    assert world.heard[-1] == Finished("length", 3, 20)
    assert world.told == ["peer/a", LOCAL]
    assert all(record.running == 0 for record in world.records.values())


async def test_it_is_not_asked_again_before_it_has_let_go() -> None:
    """Both would have the same id there."""
    world = World(order=(LOCAL, "peer/a"), hedge_after=0.01)
    await hedged(world)
    world.sources["peer/a"].fail()
    assert len(world.sources[LOCAL].submitted) == 1
    assert not [event for event in world.heard if isinstance(event, Failed)]
    await asyncio.sleep(0)
    assert world.sources[LOCAL].submitted[-1].continued == (0, 3, 6)
    world.sources[LOCAL].make(17)
    world.sources[LOCAL].finish()
    assert world.heard[-1] == Finished("length", 3, 20)


async def test_who_cancels_while_that_is_waited_for_gets_one_end() -> None:
    world = World(order=(LOCAL, "peer/a"), hedge_after=0.01)
    relay = world.start()
    await until(world, "peer/a")
    world.sources["peer/a"].make(3)
    world.sources["peer/a"].fail()
    relay.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert world.heard[-1] == Finished("cancelled", 3, 3)
    assert len(world.sources[LOCAL].submitted) == 1


async def test_the_time_to_live_counts_from_the_beginning_wherever_it_goes() -> None:
    world = World(order=("peer/a", "peer/b", LOCAL))
    world.start(replace(REQUEST, ttl_s=5.0))
    world.now = 3.0
    world.sources["peer/a"].fail()
    assert world.sources["peer/b"].submitted[0].ttl_s == 2.0
    world.now = 6.0
    world.sources["peer/b"].fail(Expired("it waited too long"))
    assert world.sources[LOCAL].submitted[0].ttl_s == 0.0, "now or never"
