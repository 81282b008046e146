"""All of admission joined: the way of a request through it, and what steering changes."""

from __future__ import annotations

import pytest

from node.admission.load import Memory
from node.admission.quota import Quotas, parse
from node.admission.reception import Reception
from node.errors import Overloaded, RateLimited
from node.generation import Caller, Event, Finished, Level, ModelInfo, Request, Started, Token
from node.layers import load
from tests.support.sources import HandSource

INFO = ModelInfo("m", "hand", 0, 4096, 2, 256, 0, can_chat=True, parked=2)


def made(quotas: Quotas | None = None, **flags: str) -> tuple[Reception, HandSource]:
    source = HandSource()
    settings = load(environment={}, flags={name.replace("__", "."): value for name, value in flags.items()})
    return Reception(source, INFO, settings, quotas or Quotas()), source


def request(id: str, level: Level = "standard", max_tokens: int = 500) -> Request:
    return Request(id, (1,) * 10, max_tokens, level=level, caller=Caller(session=id))


def ignore(event: Event) -> None:
    pass


async def test_a_request_and_its_events_pass() -> None:
    reception, source = made()
    seen: list[Event] = []
    reception.source.submit(request("a"), seen.append)
    for event in (Started(), Token(1, b"x"), Finished("stop", 10, 1)):
        source.emit("a", event)
    assert seen == [Started(), Token(1, b"x"), Finished("stop", 10, 1)]
    status = reception.status()
    assert set(status) == {"queue", "load", "limits"}
    assert status["queue"]["levels"]["standard"]["admitted"] == 1
    assert status["limits"]["allowed"] == 1
    await reception.gate.drained()


async def test_limits_come_before_the_queue() -> None:
    reception, source = made(parse("[default]\nlimits = { requests_per_minute = 1, burst = 1.0 }\n"))
    reception.source.submit(request("a"), ignore)
    assert reception.headers("a")()["x-ratelimit-remaining-requests"] == "0"
    with pytest.raises(RateLimited):
        reception.source.submit(request("b"), ignore)
    assert list(source.sinks) == ["a"]
    assert reception.status()["queue"]["levels"]["standard"]["refused"] == 0


async def test_full_memory_narrows_the_gate() -> None:
    reception, source = made()
    for _ in range(3):
        reception.steer(4096, (99.0, 100.0))
    for id in "abc":
        reception.source.submit(request(id), ignore)
    assert list(source.sinks) == ["a"], "one at a time is left of two slots"
    reception.steer(4096, (10.0, 100.0))
    source.finish("a")
    assert reception.status()["queue"]["limit"] == 1, "it comes back slowly"


async def test_the_cells_of_those_who_run_are_memory_too() -> None:
    reception, _ = made()
    reception.source.submit(request("a"), ignore)
    reception.steer(10, None)
    assert reception.status()["load"]["limited_by"] == "memory"


async def test_nothing_steers_plain_fifo() -> None:
    reception, source = made(queue__policy="fifo")
    for _ in range(10):
        reception.steer(4096, (99.0, 100.0))
    for id in ("a", "b"):
        reception.source.submit(request(id, "background"), ignore)
    reception.source.submit(request("c", "critical"), ignore)
    assert list(source.sinks) == ["a", "b"]
    assert source.held == []
    assert "load" not in reception.status()
    assert not reception.recalls
    assert reception.shape(request("d")) == (request("d"), ())


async def test_a_node_under_stress_gives_less_and_says_so() -> None:
    reception, _ = made(load__gap_ms="50", load__cached_answers="ask")
    governor = reception._governor
    assert governor is not None
    clock = reception.gate._clock
    sensors = reception.gate.sensors
    for second in range(60):
        now, gap = clock() + second, 9.0 if second else 0.01
        sensors.levels["interactive"].gap_lately.add(gap, now)
        sensors.pace.add(gap, now)
        governor.tick(sensors, Memory(), 2, now)
    shaped, told = reception.shape(request("a"))
    assert (shaped.max_tokens, told) == (256, ("shorten",))
    assert reception.recalls
    with pytest.raises(Overloaded, match="background"):
        reception.source.submit(request("low", "background"), ignore)
    assert reception.status()["queue"]["levels"]["background"]["refused"] == 1
    assert reception.status()["limits"]["under_way"] == 0, "what was refused is not reserved"
