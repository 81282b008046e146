"""The gate: slots, order, cancel while waiting, closing, draining."""

import asyncio

import pytest

from node.admission.gate import Gate
from node.errors import Overloaded, Unavailable
from node.generation import Event, Failed, Finished, Request, Token
from tests.support.sources import HandSource


def request(id: str) -> Request:
    return Request(id, (1,), 5)


def make(slots: int = 1, max_waiting: int = 8) -> tuple[Gate, HandSource]:
    source = HandSource()
    return Gate(source, slots, max_waiting), source


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
