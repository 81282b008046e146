"""The places that could answer, from what is said and what was seen."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from node.errors import Conflict, EngineFailed, InvalidRequest, NodeError, Overloaded, Unavailable, UpstreamFailed
from node.generation import Caller, Request, TokenSource
from node.mesh.places import Nobody, Places
from node.mesh.record import Record
from node.mesh.route import LOCAL, Place
from node.settings import Routes
from tests.support.near import Near, NearOne
from tests.support.service import ByteModel, ScriptedSource

REQUEST = Request("r", (1, 2, 3), 100)
HERE = Place(LOCAL, "local", wait_s=0.5)


class Sky:
    """A cloud of which everything is known."""

    name = "cloud/sky"
    refusal = ""
    probes = 0

    def __init__(self) -> None:
        self.asked = ScriptedSource()

    def refuses(self, request: Request) -> str:
        return self.refusal

    def source(self) -> TokenSource:
        return self.asked

    def probe(self, record: Record) -> None:
        self.probes += 1


class World:
    """Places with a clock of their own."""

    def __init__(self, cloud: Sky | None = None, hops: int = 1) -> None:
        self.now = 100.0
        self.near = Near()
        self.near.add("a", "http://a", prefill_s=0.01, decode_s=0.02, wait_s=0.25)
        self.local = ScriptedSource()
        self.places = Places(
            self.local,
            lambda request: HERE,
            ByteModel(),
            "same",
            self.near,
            cloud,
            Routes(hops=hops),
            lambda neighbour, request: 0.75 if neighbour.id == "a" else 0.0,
            clock=lambda: self.now,
            chance=lambda: 0.0,
        )

    def peer(self, request: Request = REQUEST) -> Place:
        return next(place for place in self.places.all(request) if place.kind == "peer")


def test_a_neighbour_is_what_it_says_and_what_is_warm_there() -> None:
    assert World().peer() == Place(
        "peer/a", "peer", wait_s=0.25, prefill_s=0.01, decode_s=0.02, trip_s=0.001, warm=0.75
    )


UNFIT: list[tuple[dict[str, object], str]] = [
    ({"model_digest": "other"}, "another model"),
    ({"draining": True}, "stopping"),
    ({"context": 102}, "context is 102"),
    ({"slots": 0}, "for nobody"),
]


@pytest.mark.parametrize(("sight", "word"), UNFIT)
def test_one_that_cannot_answer_is_blocked_with_the_reason(sight: dict[str, object], word: str) -> None:
    world = World()
    world.near.change("a", **sight)
    assert word in world.peer().blocked


def test_what_wants_to_spare_power_and_who_is_stressed_shows() -> None:
    world = World()
    world.near.change("a", hot=True, rung=2)
    assert world.peer().saves_power
    assert world.peer().rung == 2


def test_what_we_gave_it_since_counts_as_taken() -> None:
    world = World()
    world.near.change("a", free_slots=2, wait_s=0.0)
    record = world.places.record("peer/a")
    record.began(world.now)
    assert world.peer().wait_s == 0.0
    record.began(world.now)
    assert world.peer().wait_s == 0.5


def test_a_request_goes_no_further_than_it_may() -> None:
    world = World(hops=1)
    assert len(world.places.all(replace(REQUEST, hops=1))) == 1
    assert len(World(hops=2).places.all(replace(REQUEST, hops=1))) == 2
    assert len(World(hops=0).places.all(REQUEST)) == 1
    assert len(world.places.all(replace(REQUEST, kind="embed"))) == 1, "only text is made by others"


def test_tried_places_are_blocked() -> None:
    world = World()
    found = {place.name: place.blocked for place in world.places.all(REQUEST, {LOCAL: "it was", "peer/a": "it, too"})}
    assert found == {LOCAL: "it was", "peer/a": "it, too"}


def test_each_name_has_its_source() -> None:
    sky = Sky()
    world = World(sky)
    assert world.places.source(LOCAL) is world.local
    assert world.places.source("cloud/sky") is sky.asked
    assert world.places.source("peer/a") is world.places.source("peer/a") is not world.places.source("peer/b")


def test_failures_block_a_neighbour_and_make_it_doubtful() -> None:
    world = World()
    for _ in range(5):
        world.places.failed("peer/a", UpstreamFailed("gone"))
    assert world.near.doubted == {"a": "gone"}
    world.near.doubted.clear()
    assert "5 failures" in world.peer().blocked
    world.now += 6
    assert world.peer().blocked == ""


HARMLESS: list[NodeError] = [Conflict("other model"), InvalidRequest("no"), UpstreamFailed("x", answered=400)]


@pytest.mark.parametrize("error", HARMLESS)
def test_what_is_about_one_request_says_nothing_of_a_place(error: NodeError) -> None:
    world = World()
    for _ in range(9):
        world.places.failed("peer/a", error)
    assert world.peer().blocked == ""
    assert not world.near.doubted


def test_one_that_is_full_rests_for_as_long_as_it_says() -> None:
    world = World()
    world.places.failed("peer/a", Overloaded("full", retry_after=4))
    assert "4 s of rest" in world.peer().blocked
    world.now += 4
    assert world.peer().blocked == ""
    world.places.failed("peer/a", Unavailable("draining", retry_after=9))
    assert "9 s of rest" in world.peer().blocked
    assert not world.near.doubted, "it did answer"


def test_this_node_is_never_blocked_by_its_failures() -> None:
    world = World()
    for _ in range(9):
        world.places.failed(LOCAL, EngineFailed("broke"))
    assert not world.places.all(REQUEST)[0].blocked


def test_the_cloud_is_blocked_by_its_refusal_and_probed_when_it_may_be_well_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sky = Sky()
    world = World(sky)

    def cloud() -> Place:
        return next(place for place in world.places.all(REQUEST) if place.kind == "cloud")

    assert cloud().blocked == ""
    sky.refusal = "never"
    assert cloud().blocked == "never"
    sky.refusal = ""
    with caplog.at_level(logging.ERROR):
        world.places.failed("cloud/sky", UpstreamFailed("no", answered=401))
    assert "set up wrongly" in caplog.text
    assert "401" in cloud().blocked
    assert sky.probes == 0
    world.now += 3601
    assert "looked at" in cloud().blocked
    assert sky.probes == 1
    world.places.record("cloud/sky").breaker.reset()
    assert cloud().blocked == ""


def test_the_cloud_is_as_quick_as_it_was() -> None:
    world = World(Sky())
    world.places.record("cloud/sky").spoke(3.0, 3.0, world.now)
    (cloud,) = [place for place in world.places.all(REQUEST) if place.kind == "cloud"]
    assert cloud.trip_s == 3.0


def test_records_are_bounded_but_what_runs_is_kept() -> None:
    world = World()
    busy = world.places.record("peer/busy")
    busy.began(0.0)
    for number in range(1500):
        world.places.record(f"peer/{number}")
    assert world.places.record("peer/busy") is busy
    assert len(world.places.status()) <= 1024


def test_status_has_a_row_for_each_place_that_was_asked() -> None:
    world = World()
    world.places.failed("peer/a", Overloaded("full", retry_after=4))
    assert world.places.status() == {
        "peer/a": {
            **{"state": "closed", "running": 0, "typical_ttft_s": 0.0, "late_s": 0.0},
            "blocked": "it asked for 4 s of rest",
        }
    }


def test_nobody_is_nobody() -> None:
    assert Nobody().candidates() == ()
    Nobody().doubt("x", "y")
    with pytest.raises(Unavailable):
        Nobody().session("x")


def test_a_neighbour_of_tests_is_one() -> None:
    near = Near()
    near.add("x", "http://x")
    assert near.candidates() == [NearOne("x", near.neighbours["x"][1].sight)]
    assert Caller().tenant == ""
