"""The gate: slots, order, cancel while waiting, closing, draining."""

import asyncio
from typing import Any

import pytest

from node.admission.gate import Gate
from node.admission.governor import Governor, Objectives
from node.admission.load import Memory
from node.admission.rules import Rules
from node.errors import Expired, Overloaded, Unavailable
from node.generation import Event, Failed, Finished, Level, Request, Started, Token
from tests.support.sources import HandSource


def request(id: str, level: Level = "standard", ttl_s: float | None = None) -> Request:
    return Request(id, (1,), 5, level=level, ttl_s=ttl_s)


def make(slots: int = 1, max_waiting: int = 8, max_parked: int = 0) -> tuple[Gate, HandSource]:
    source = HandSource()
    return Gate(source, slots, Rules(max_waiting=max_waiting), max_parked), source


async def test_holds_back_until_a_slot_is_free() -> None:
    gate, source = make()
    seen: list[Event] = []
    gate.submit(request("a"), lambda event: None)
    gate.submit(request("b"), seen.append)
    assert list(source.sinks) == ["a"]
    assert (gate.running, gate.waiting) == (1, 1)
    source.finish("a")
    assert list(source.sinks) == ["a", "b"]
    source.emit("b", Token(1, b"x"))
    source.finish("b")
    assert seen == [Token(1, b"x"), Finished("stop", 1, 1)]
    assert (gate.running, gate.waiting) == (0, 0)


async def test_refuses_at_once_when_full() -> None:
    gate, _ = make(max_waiting=0)
    gate.submit(request("a"), lambda event: None)
    with pytest.raises(Overloaded):
        gate.submit(request("b"), lambda event: None)


async def test_what_another_life_has_begun_is_let_in_whatever_is_asked_now() -> None:
    source, governor = HandSource(), Governor(1, Objectives())
    governor._ladder.rung = "refuse"
    gate = Gate(source, 1, Rules(max_waiting=0), governor=governor)
    gate.submit(request("a", "critical"), lambda event: None)
    with pytest.raises(Overloaded):
        gate.submit(request("b"), lambda event: None)
    gate.submit(Request("b", (1,), 5, continued=(1,)), lambda event: None)
    source.finish("a")
    assert list(source.sinks) == ["a", "b"]


async def test_a_call_of_many_inputs_is_one_request_to_the_governor() -> None:
    """Else a batch on a quiet node is a surge, and shuts itself out."""
    source, governor = HandSource(), Governor(1, Objectives())
    gate = Gate(source, 1, Rules(), governor=governor)
    for number in range(40):
        one = Request(f"{number}", (1,), 0, kind="embed", batch=0 if number else 40)
        gate.submit(one, lambda event: None)
    assert governor._fuse._count == 1


async def test_a_ghost_in_the_queue_never_runs() -> None:
    gate, source = make()
    seen: list[Event] = []
    gate.submit(request("a"), lambda event: None)
    gate.submit(request("b"), seen.append)
    gate.cancel("b")
    await asyncio.sleep(0)
    assert seen == [Finished("cancelled", 1, 0)]
    source.finish("a")
    assert list(source.sinks) == ["a"]
    assert source.cancelled == []


async def test_cancel_of_a_running_request_is_passed_on() -> None:
    gate, source = make()
    gate.submit(request("a"), lambda event: None)
    gate.cancel("a")
    assert source.cancelled == ["a"]
    assert gate.running == 1, "the slot is free only when the source says so"
    source.emit("a", Finished("cancelled", 1, 0))
    assert gate.running == 0


async def test_closed_gate_refuses_and_drains() -> None:
    gate, source = make()
    gate.submit(request("a"), lambda event: None)
    gate.submit(request("b"), lambda event: None)
    gate.close()
    with pytest.raises(Unavailable):
        gate.submit(request("c"), lambda event: None)
    waiting = asyncio.create_task(gate.drained())
    source.finish("a")
    await asyncio.sleep(0)
    assert not waiting.done(), "what waited before still runs"
    source.finish("b")
    await waiting


async def test_a_waiting_request_hears_when_its_source_is_gone() -> None:
    gate, source = make()
    seen: list[Event] = []
    gate.submit(request("a"), lambda event: None)
    gate.submit(request("b"), seen.append)
    gate.submit(request("c"), seen.append)
    source.refuse = Unavailable("gone")
    source.finish("a")
    await asyncio.sleep(0)
    assert seen == [Failed(source.refuse), Failed(source.refuse)]
    await gate.drained()


async def test_a_request_that_waited_too_long_hears_why_and_never_runs() -> None:
    gate, source = make()
    heard: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
    gate.submit(request("a"), lambda event: None)
    gate.submit(request("b", ttl_s=0.01), heard.set_result)
    end = await heard
    assert isinstance(end, Failed)
    assert isinstance(end.error, Expired)
    assert "0.01 s" in end.error.message
    assert (gate.running, gate.waiting) == (1, 0)
    source.finish("a")
    assert list(source.sinks) == ["a"]
    await gate.drained()


async def test_a_critical_request_gets_the_slot_of_another_which_then_goes_on() -> None:
    gate, source = make(max_parked=1)
    gate.submit(request("low"), lambda event: None)
    gate.submit(request("high", "critical"), lambda event: None)
    assert source.held == [("low", True)]
    assert list(source.sinks) == ["low", "high"]
    source.finish("high")
    assert source.held == [("low", True), ("low", False)]
    source.finish("low")
    await gate.drained()


async def test_a_parked_request_can_be_cancelled_and_counts_as_not_drained() -> None:
    gate, source = make(max_parked=1)
    gate.submit(request("low"), lambda event: None)
    gate.hold("low", True)
    assert gate.running == 0
    draining = asyncio.create_task(gate.drained())
    await asyncio.sleep(0)
    assert not draining.done()
    gate.cancel("low")
    assert source.cancelled == ["low"]
    source.emit("low", Finished("cancelled", 1, 0))
    await draining


async def test_holds_are_passed_on_where_nothing_can_be_parked() -> None:
    gate, source = make()
    gate.submit(request("a"), lambda event: None)
    gate.submit(request("b"), lambda event: None)
    gate.hold("a", True)
    gate.hold("b", True)
    gate.hold("a", False)
    assert source.held == [("a", True), ("a", False)], "one that waits has nothing to hold back"
    assert list(source.sinks) == ["a"]


async def test_a_newcomer_that_the_source_refuses_hears_it_at_once_and_leaves_nothing_behind() -> None:
    gate, source = make()
    source.refuse = Unavailable("gone")
    with pytest.raises(Unavailable):
        gate.submit(request("a"), lambda event: None)
    assert (gate.running, gate.waiting) == (0, 0)
    await gate.drained()


class Clock:
    """Time that a test turns forward."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def stalled(**more: Any) -> tuple[Gate, HandSource, list[Event], list[Event]]:
    """One slot, held for a reader who stalled after two tokens; another request has just taken it."""
    source, clock = HandSource(), Clock()
    gate = Gate(source, 1, Rules(), clock=clock)
    slow: list[Event] = []
    other: list[Event] = []
    gate.submit(Request("slow", (1, 2), 9, **more), slow.append)
    for event in (Started(2), Token(7, b"x"), Token(8, b"y")):
        source.emit("slow", event)
    gate.hold("slow", True)
    gate.submit(request("other"), other.append)
    assert list(source.sinks) == ["slow"]
    clock.now += 5
    gate.steer(Memory())
    assert source.cancelled == ["slow"]
    assert list(source.sinks) == ["slow", "other"]
    return gate, source, slow, other


async def test_one_whose_reader_stalled_leaves_the_source_and_goes_on_when_it_is_back() -> None:
    gate, source, slow, _ = stalled(ttl_s=3.0)
    source.emit("slow", Token(9, b"late"))
    source.emit("slow", Finished("cancelled", 2, 3))
    assert len(slow) == 4, "its reader hears of no end"
    gate.hold("slow", False)
    source.finish("other")
    again = source.requests["slow"]
    assert (again.continued, again.max_tokens, again.ttl_s) == ((7, 8, 9), 9, None)
    for event in (Started(5), Token(10, b"z"), Finished("stop", 2, 4)):
        source.emit("slow", event)
    assert slow[4:] == [Token(10, b"z"), Finished("stop", 2, 4)]
    await gate.drained()


async def test_it_goes_on_only_when_the_source_has_let_go_of_it() -> None:
    gate, source, slow, _ = stalled()
    gate.hold("slow", False)
    source.finish("other")
    assert source.requests["slow"].continued == ()
    source.emit("slow", Finished("cancelled", 2, 2))
    assert source.requests["slow"].continued == (7, 8)
    source.emit("slow", Finished("stop", 2, 2))
    assert isinstance(slow[-1], Finished)
    await gate.drained()


@pytest.mark.parametrize("let_go", [False, True])
async def test_a_client_that_leaves_ends_what_was_set_aside(let_go: bool) -> None:
    gate, source, slow, _ = stalled()
    if let_go:
        source.emit("slow", Finished("cancelled", 2, 2))
    gate.cancel("slow")
    if not let_go:
        assert source.cancelled == ["slow", "slow"]
        source.emit("slow", Finished("cancelled", 2, 2))
    await asyncio.sleep(0)
    assert slow[-1] == Finished("cancelled", 2, 2)
    source.finish("other")
    await gate.drained()


async def test_what_cannot_go_on_hears_why() -> None:
    gate, source, slow, _ = stalled()
    source.emit("slow", Finished("cancelled", 2, 2))
    gate.hold("slow", False)
    source.refuse = Unavailable("gone")
    source.finish("other")
    await asyncio.sleep(0)
    assert slow[-1] == Failed(source.refuse)
    gate.steer(Memory())
    await gate.drained()


async def test_the_status_tells_what_each_level_felt() -> None:
    source, clock = HandSource(), Clock()
    gate = Gate(source, 1, Rules(max_waiting=2), 1, clock=clock)
    gate.submit(request("low", "background"), lambda event: None)
    gate.submit(request("low2", "background"), lambda event: None)
    with pytest.raises(Overloaded):
        gate.submit(request("low3", "background"), lambda event: None)
    clock.now += 1
    source.emit("low", Token(1, b"x"))
    gate.submit(request("high", "critical"), lambda event: None)
    for _ in range(3):
        clock.now += 0.5
        source.emit("high", Token(1, b"x"))
    status = gate.status()
    assert (status["slots"], status["running"], status["parked"], status["waiting"]) == (1, 1, 1, 1)
    critical, background = status["levels"]["critical"], status["levels"]["background"]
    felt = [critical[name] for name in ("wait_p95_s", "ttft_p95_s", "gap_p50_s")]
    assert felt == pytest.approx([0.001, 0.5, 0.5], rel=0.11)
    assert (background["waiting"], background["refused"], background["parked"], background["admitted"]) == (1, 1, 1, 2)
    assert background["ttft_p50_s"] == pytest.approx(1, rel=0.11)
    assert background["gap_p50_s"] is None, "the time without a slot is no gap"
    clock.now += 61
    assert gate.status()["levels"]["critical"]["ttft_p95_s"] is None, "that was more than a minute ago"


async def test_what_is_warm_here_goes_first_within_its_level() -> None:
    source = HandSource()
    warm = {(1,): 0.0, (2,): 1.0}
    gate = Gate(source, 1, Rules(), warm_share=lambda prompt, caller: warm[prompt], clock=Clock())
    gate.submit(request("running"), lambda event: None)
    gate.submit(request("cold"), lambda event: None)
    gate.submit(Request("warm", (2,), 5), lambda event: None)
    source.finish("running")
    source.finish("warm")
    assert list(source.sinks) == ["running", "warm", "cold"]


async def test_every_fate_is_counted_once() -> None:
    gate, source = make()
    for id in ("a", "b", "c"):
        gate.submit(request(id), lambda event: None)
    gate.cancel("c")
    source.finish("a")
    source.emit("b", Failed(Unavailable("gone")))
    source.refuse = Unavailable("gone")
    with pytest.raises(Unavailable):
        gate.submit(request("d"), lambda event: None)
    fates = gate.sensors.levels["standard"].fates
    assert fates == {"admitted": 4, "cancelled": 1, "finished": 1, "failed": 2}


async def test_what_a_newcomer_would_wait_and_the_usual_pace() -> None:
    gate, source = make()
    assert gate.wait_s("standard") == 0.0
    assert gate.gap_s() is None
    gate.submit(request("a"), lambda event: None)
    for _ in range(3):
        source.emit("a", Token(1, b"x"))
        await asyncio.sleep(0.002)
    gap = gate.gap_s()
    assert gap is not None
    assert 0 < gap < 1
    source.finish("a")
    gate.submit(request("b"), lambda event: None)
    assert gate.wait_s("standard") > 0
