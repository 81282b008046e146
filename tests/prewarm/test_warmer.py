"""Moves towards a plan: only in idle moments, the right ones, and none twice in vain."""

from __future__ import annotations

import asyncio
import math
import time

import pytest

from node.generation import Caller, Request
from node.prewarm import warmer as module
from node.prewarm.history import History
from node.prewarm.stock import Stock
from node.prewarm.warmer import Warmer
from node.settings import Prewarm
from tests.prewarm.conftest import StartStock, text, until

PREAMBLE = "You are the kiosk of a small museum by the sea. It opens at nine, and closes at five in the afternoon. "
QUESTIONS = ("What is a whale?", "Where is the exit?", "Is there cake?")


class Bench:
    """A warmer whose node is idle when the test says so; every move comes a minute after the last."""

    def __init__(self, stock: Stock, **settings: object) -> None:
        self.stock = stock
        self.settings = Prewarm(**settings)  # type: ignore[arg-type]
        self.history = History(self.settings)
        self.idle = True
        self.held: list[int] = []
        self.warmer = Warmer(self.settings, self.history, stock, lambda: self.held, lambda: self.idle)
        self.now = float(math.ceil(time.monotonic()))  # whole seconds add up exactly

    def ask(self, *prompts: str, tenant: str = "", session: str = "") -> list[int | None]:
        self.warmer._stale = True
        return [
            self.history.note(Request("r", tuple(prompt.encode()), 1, caller=Caller(tenant, "", session)))
            for prompt in prompts
        ]

    def ask_often(self, tenant: str = "") -> None:
        """Three sessions ask, each another question."""
        for session, question in enumerate(QUESTIONS):
            self.ask(PREAMBLE + question, tenant=tenant, session=str(session))

    async def move(self) -> bool:
        self.now += 70
        return await self.warmer.move(self.now)

    async def settle(self) -> int:
        moves = 0
        while await self.move():
            moves += 1
            assert moves < 100
        return moves

    def in_memory(self, prompt: str, owner: str | None = "") -> int:
        return self.stock.in_memory(owner, text(prompt))

    def on_disk(self, prompt: str, owner: str | None = "") -> int:
        return self.stock.on_disk(owner, text(prompt))


async def test_what_many_asked_is_read_and_stored_and_no_more_of_it(start_stock: StartStock) -> None:
    bench = Bench((await start_stock())[0])
    bench.ask_often()
    assert await bench.settle() == 3, "two blocks read, one file written"
    for question in QUESTIONS:
        assert bench.in_memory(PREAMBLE + question) == len(PREAMBLE)
        assert bench.on_disk(PREAMBLE + question) == len(PREAMBLE)
    assert not await bench.move()


async def test_nothing_moves_in_a_burst_and_one_block_at_a_time(start_stock: StartStock) -> None:
    bench = Bench((await start_stock())[0])
    bench.ask_often()
    bench.warmer.nudge(prompt=True)
    assert not await bench.warmer.move(bench.warmer._active + module.SETTLE_S / 2)
    assert await bench.move()
    assert bench.in_memory(PREAMBLE) == 64
    bench.idle = False
    assert not await bench.move()
    bench.idle = True
    assert await bench.move()
    assert bench.in_memory(PREAMBLE) == len(PREAMBLE)


async def test_beside_requests_only_files_are_written_and_not_often(start_stock: StartStock) -> None:
    bench = Bench((await start_stock())[0])
    bench.ask_often()
    bench.ask_often(tenant="b")
    for owner in ("", "b"):
        while await bench.stock.read(owner, text(PREAMBLE)):
            pass
    bench.stock.memory.drop("b", text(PREAMBLE))
    bench.idle = False
    assert await bench.move()
    assert bench.on_disk(PREAMBLE) == len(PREAMBLE)
    assert not await bench.warmer.move(bench.warmer._saved + module.BUSY_SAVE_S / 2)
    assert not await bench.move(), "the other one would have to be read"


async def test_what_too_few_asked_is_neither_read_nor_stored(start_stock: StartStock) -> None:
    bench = Bench((await start_stock())[0])
    (end,) = bench.ask(PREAMBLE, session="1")
    assert await bench.settle() == 0
    while await bench.stock.read("", text(PREAMBLE)):
        pass
    bench.held = [end or 0]
    bench.warmer._stale = True
    assert await bench.settle() == 0
    assert bench.on_disk(PREAMBLE) == 0
    assert [decision["kind"] for decision in bench.warmer.explain()] == ["recent"]


async def test_templates_are_everybodys(start_stock: StartStock) -> None:
    bench = Bench((await start_stock())[0])
    bench.history.pin(tuple(PREAMBLE.encode()))
    await bench.settle()
    assert bench.in_memory(PREAMBLE, "anyone") == len(PREAMBLE)
    assert bench.on_disk(PREAMBLE, "anyone") == len(PREAMBLE)


async def test_tenants_are_apart_unless_they_share(start_stock: StartStock) -> None:
    bench = Bench((await start_stock())[0])
    bench.ask_often(tenant="a")
    await bench.settle()
    assert bench.in_memory(PREAMBLE, "a") == len(PREAMBLE)
    assert bench.in_memory(PREAMBLE, "b") == 0


async def test_what_is_on_disk_is_loaded_and_not_read(start_stock: StartStock) -> None:
    bench = Bench((await start_stock())[0])
    bench.ask_often()
    await bench.settle()
    bench.stock.memory.clear()
    bench.ask_often()
    bench.warmer._planned = -1000.0
    assert await bench.settle() == 1
    assert bench.stock.loads == 1
    assert bench.in_memory(PREAMBLE) == len(PREAMBLE)


async def test_a_prefix_that_memory_cannot_hold_is_tried_once(start_stock: StartStock) -> None:
    bench = Bench((await start_stock(budget=600))[0])
    bench.ask_often()
    moves = await bench.settle()
    assert moves <= 2
    assert bench.on_disk(PREAMBLE) == 0
    assert not await bench.move()


async def test_what_nobody_wants_any_more_leaves_the_disk(
    start_stock: StartStock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench((await start_stock())[0])
    bench.ask_often()
    await bench.settle()
    await bench.history.forget()
    bench.warmer.forget()
    bench.warmer._born = bench.now
    await bench.warmer.move(bench.now + module.TAKE_UP_S / 2)
    assert bench.on_disk(PREAMBLE) > 0, "a former life may have left it for a generation that goes on"
    bench.ask("x")
    bench.now += module.TAKE_UP_S
    await bench.settle()
    assert bench.on_disk(PREAMBLE) == 0


async def test_the_rest_is_stored_at_the_end_without_reading(start_stock: StartStock) -> None:
    bench = Bench((await start_stock())[0])
    bench.ask_often()
    bench.ask_often(tenant="b")
    while await bench.stock.read("", text(PREAMBLE)):
        pass
    await bench.move()
    await bench.warmer.store_rest()
    assert bench.on_disk(PREAMBLE) == len(PREAMBLE)
    assert bench.on_disk(PREAMBLE, "b") == 0


async def test_plans_come_when_prompts_came_and_now_and_then(start_stock: StartStock) -> None:
    bench = Bench((await start_stock())[0])
    bench.ask_often()
    await bench.move()
    planned, plan = bench.warmer._planned, bench.warmer.plan
    await bench.warmer.move(planned + module.PLAN_EVERY_S)
    assert bench.warmer.plan is plan, "no prompt came"
    bench.warmer.nudge(prompt=True)
    bench.warmer._active = 0.0
    await bench.warmer.move(planned + module.PLAN_EVERY_S)
    assert bench.warmer._planned == planned + module.PLAN_EVERY_S
    await bench.warmer.move(planned + module.PLAN_EVERY_S + module.REPLAN_S)
    assert bench.warmer._planned == planned + module.PLAN_EVERY_S + module.REPLAN_S


async def test_the_plan_explains_itself(start_stock: StartStock) -> None:
    bench = Bench((await start_stock())[0])
    bench.ask_often()
    await bench.settle()
    (row,) = bench.warmer.explain()
    assert row["tokens"] == row["adds"] == row["in_memory"] == row["on_disk"] == len(PREAMBLE)
    assert row["planned"] in (["disk"], ["memory", "disk"])
    assert row["saves_s"] > 0
    await bench.history.forget()
    assert bench.warmer.explain()[0]["in_memory"] == 0, "its tokens are gone"


async def test_it_runs_by_itself_and_ends_when_it_is_told(
    start_stock: StartStock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLE_S", 0.0)
    bench = Bench((await start_stock())[0])
    bench.ask_often()
    running = asyncio.create_task(bench.warmer.run())
    await until(lambda: bench.in_memory(PREAMBLE) == len(PREAMBLE))
    bench.warmer.nudge()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_an_engine_that_stops_is_no_disaster(start_stock: StartStock, caplog: pytest.LogCaptureFixture) -> None:
    stock, worker = await start_stock()
    bench = Bench(stock)
    bench.ask_often()
    await worker.stop()
    running = asyncio.create_task(bench.warmer.run())
    await until(lambda: "interrupted" in caplog.text)
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_many_share_is_told_as_far_as_it_is_warm(start_stock: StartStock) -> None:
    bench = Bench((await start_stock())[0])
    assert list(bench.warmer.shared()) == []
    bench.ask_often()
    await bench.move()
    ((owner, ids),) = bench.warmer.shared()
    assert (owner, ids) == ("", list(PREAMBLE.encode())[:64])
    await bench.settle()
    ((_, ids),) = bench.warmer.shared()
    assert ids == list(PREAMBLE.encode()), "and nothing of what only one of them asked"
