"""The stage on a request's way: loading first where that pays, counting, affinity, stopping, forgetting."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from node.engine.worker import Worker
from node.errors import Unavailable
from node.generation import Caller, Embedded, Event, Failed, Finished, Request, Started, Token, Warmth
from node.prewarm import keeper as keepers
from node.prewarm import warmer
from node.prewarm.history import History
from node.prewarm.keeper import Keeper
from node.prewarm.stock import Stock
from node.settings import Prewarm
from node.stream.session import Session
from tests.prewarm.conftest import StartStock, text, until
from tests.support.sources import HandSource

LONG = "The museum opens at nine and closes at five; the cafe on the roof sells cake, tea and soup until four. "
StartKeeper = Callable[..., Awaitable["Parts"]]


class Parts:
    def __init__(self, keeper: Keeper, stock: Stock, worker: Worker) -> None:
        self.keeper = keeper
        self.stock = stock
        self.worker = worker

    async def ask(self, prompt: str, id: str = "r", **more: object) -> Session:
        request = Request(id, tuple(prompt.encode()), 5, ignore_eos=True, **more)  # type: ignore[arg-type]
        session = Session(request, self.keeper)
        self.keeper.submit(request, session.feed)
        await session.finished()
        return session

    async def to_disk_only(self, prompt: str, owner: str = "") -> None:
        while await self.stock.read(owner, text(prompt)):
            pass
        assert await self.stock.save(owner, text(prompt), 1 << 20)
        self.stock.memory.clear()


@pytest.fixture
async def start(start_stock: StartStock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StartKeeper]:
    """Start a keeper; `settle_s` is how long it waits before it warms (default: longer than any test)."""
    keepers: list[Keeper] = []

    async def start(settle_s: float = 1000.0, pinned: str = "", **settings: object) -> Parts:
        monkeypatch.setattr(warmer, "SETTLE_S", settle_s)
        monkeypatch.setattr(warmer, "PLAN_EVERY_S", 0.02)
        stock, worker = await start_stock(disk=False)
        values = Prewarm(**settings)  # type: ignore[arg-type]
        keeper = Keeper(values, worker, History(values), stock)
        if pinned:
            keeper.pin(text(pinned).tolist())
        await keeper.start(tmp_path / "states", lambda folder: "print")
        keepers.append(keeper)
        return Parts(keeper, stock, worker)

    yield start
    for keeper in keepers:
        await keeper.stop()


async def test_what_was_asked_before_is_cached_and_counted(start: StartKeeper) -> None:
    parts = await start()
    first, again = await parts.ask(LONG), await parts.ask(LONG)
    assert (first.cached_tokens, again.cached_tokens) == (0, len(LONG) - 1)
    warmth = parts.keeper.warmth
    assert (warmth.requests, warmth.hits) == (2, 1)
    assert (warmth.prompt_tokens, warmth.cached_tokens) == (2 * len(LONG), len(LONG) - 1)
    assert warmth.saved_s == len(LONG) - 1, "a second a token, as the engine says"
    assert warmth.memory_bytes > 0


async def test_a_state_on_disk_is_loaded_before_the_request_goes_on(start: StartKeeper) -> None:
    parts = await start()
    await parts.to_disk_only(LONG)
    sessions = await asyncio.gather(*(parts.ask(LONG + str(n), id=str(n)) for n in range(3)))
    assert [session.cached_tokens for session in sessions] == [len(LONG)] * 3
    assert parts.keeper.warmth.loads == 1
    assert 0 < parts.keeper.warmth.saved_s < 3 * len(LONG)
    assert sessions[1].text == (LONG + "1")[:5]


async def test_another_tenants_state_is_not_loaded(start: StartKeeper) -> None:
    parts = await start()
    await parts.to_disk_only(LONG, owner="a")
    assert (await parts.ask(LONG, caller=Caller(tenant="b"))).cached_tokens == 0
    assert parts.keeper.warmth.loads == 0
    assert (await parts.ask(LONG, caller=Caller(tenant="a"))).cached_tokens == len(LONG) - 1


async def test_a_damaged_state_is_a_plain_prompt_and_one_line(
    start: StartKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    parts = await start()
    await parts.to_disk_only(LONG)
    assert parts.stock.shelf
    path = parts.stock.shelf.files[0].path
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with caplog.at_level(logging.WARNING):
        session = await parts.ask(LONG)
    assert (session.cached_tokens, session.text) == (0, LONG[:5])
    assert len(caplog.records) == 1
    assert LONG[:8] not in caplog.text


async def test_a_request_is_cancelled_while_it_waits_for_a_state(start: StartKeeper) -> None:
    parts = await start()
    await parts.to_disk_only(LONG)
    events: list[Event] = []
    parts.keeper.submit(Request("r", tuple(LONG.encode()), 5), events.append)
    parts.keeper.cancel("r")
    assert events == [], "not from inside the call"
    await until(lambda: bool(events))
    assert events == [Finished("cancelled", len(LONG), 0)]
    await parts.ask(LONG, id="other")
    assert len(events) == 1
    assert not parts.keeper._running


async def test_what_comes_again_under_its_id_while_the_state_loads_is_not_mixed_up_with_it(start: StartKeeper) -> None:
    """A neighbour was faster, and broke off: the rest comes back, and the beginning must not be made a second time."""
    parts = await start()
    await parts.to_disk_only(LONG)
    first, rest = Request("r", tuple(LONG.encode()), 5), Request("r", tuple(LONG.encode()), 5, continued=(1, 2, 3))
    gone: list[Event] = []
    events: list[Event] = []
    parts.keeper.submit(first, gone.append)
    parts.keeper.cancel("r")
    parts.keeper.submit(rest, events.append)
    await until(lambda: bool(events) and isinstance(events[-1], Finished))
    assert len([event for event in events if isinstance(event, Token)]) == 2
    assert gone == [Finished("cancelled", len(LONG), 0)]


async def test_a_request_that_is_held_while_it_waits_stays_held(start: StartKeeper) -> None:
    parts = await start()
    await parts.to_disk_only(LONG)
    events: list[Event] = []
    parts.keeper.submit(Request("r", tuple(LONG.encode()), 5), events.append)
    parts.keeper.hold("r", True)
    await until(lambda: not parts.keeper._waiting)
    await parts.ask(LONG, id="other")
    assert events == []
    parts.keeper.hold("r", False)
    await until(lambda: bool(events) and isinstance(events[-1], Finished))


async def test_a_source_that_refuses_is_heard_at_once_or_through_the_sink(start: StartKeeper) -> None:
    parts = await start()
    await parts.to_disk_only(LONG)
    source = HandSource()
    source.refuse = Unavailable("closed", retry_after=1)
    parts.keeper._source = source
    events: list[Event] = []
    with pytest.raises(Unavailable):
        parts.keeper.submit(Request("r", (1, 2), 5), events.append)
    parts.keeper.submit(Request("s", tuple(LONG.encode()), 5), events.append)
    await until(lambda: bool(events))
    assert isinstance(events[0], Failed)
    assert not parts.keeper._running


async def test_embeddings_pass_and_are_not_counted(start: StartKeeper) -> None:
    parts = await start()
    await parts.to_disk_only(LONG)
    events: list[Event] = []
    parts.keeper.submit(Request("r", tuple(LONG.encode()), 0, kind="embed"), events.append)
    await until(lambda: bool(events) and isinstance(events[-1], Embedded))
    assert parts.keeper.warmth == Warmth(disk_bytes=parts.stock.disk_bytes, saves=1)
    assert Started(0) in events


async def test_the_share_that_is_warm_counts_memory_and_disk(start: StartKeeper) -> None:
    parts = await start()
    prompt, caller = tuple((LONG + LONG).encode()), Caller(tenant="a")
    assert parts.keeper.warm_share(prompt, caller) == 0.0
    await parts.to_disk_only(LONG, owner="a")
    assert parts.keeper.warm_share(prompt, caller) == 0.5
    assert parts.keeper.warm_share(prompt, Caller()) == 0.0
    await parts.ask(LONG + LONG, caller=caller)
    assert parts.keeper.warm_share(prompt, caller) == 1.0
    assert parts.keeper.warm_share((), caller) == 0.0


async def test_it_gives_memory_back_while_the_machine_is_short_of_it(start: StartKeeper) -> None:
    parts = await start()
    await parts.ask(LONG)
    parts.keeper.relieve(None, None)
    parts.keeper.relieve(1000, 900)
    assert parts.keeper.warmth.memory_bytes > 0
    parts.keeper.relieve(1 << 30, 1 << 20)
    assert parts.keeper.warmth.memory_bytes == 0
    assert parts.keeper.warmth.evictions == 2


async def test_it_warms_and_stores_when_the_node_is_idle(start: StartKeeper) -> None:
    parts = await start(settle_s=0.0, min_sessions=2)
    for session in ("1", "2"):
        await parts.ask(LONG + session * 9, caller=Caller(session=session))
    await until(lambda: parts.stock.on_disk("", text(LONG)) == len(LONG))
    (row,) = [row for row in parts.keeper.why() if row["kind"] == "shared"]
    assert row["tokens"] == len(LONG)


async def test_a_template_is_warm_before_anybody_asked_and_for_everybody(start: StartKeeper) -> None:
    parts = await start(settle_s=0.0, pinned=LONG)
    await until(lambda: parts.stock.on_disk(None, text(LONG)) == len(LONG))
    (row,) = parts.keeper.why()
    assert (row["kind"], row["tenant"], row["tokens"]) == ("pinned", None, len(LONG))
    for tenant in ("one", "other"):
        session = await parts.ask(LONG + tenant, caller=Caller(tenant, "", tenant))
        assert session.cached_tokens == len(LONG)
    await parts.keeper.forget()
    await until(lambda: parts.stock.in_memory(None, text(LONG)) == len(LONG))


async def test_where_prewarming_is_off_nothing_is_pinned(start: StartKeeper) -> None:
    parts = await start(settle_s=0.0, pinned=LONG, enabled=False)
    assert parts.keeper.status()["history"]["nodes"] == 0


async def test_a_restart_finds_what_was_stored(start: StartKeeper) -> None:
    parts = await start()
    await parts.to_disk_only(LONG)
    await parts.keeper.stop()
    again = await start()
    assert (await again.ask(LONG)).cached_tokens == len(LONG) - 1


async def test_a_generation_that_goes_on_in_the_next_life_finds_its_state(start: StartKeeper) -> None:
    parts = await start()
    request = Request("r", tuple(LONG.encode()), 1000, ignore_eos=True)
    session = Session(request, parts.keeper)
    parts.keeper.submit(request, session.feed)
    while session.count < 20:
        await session.changed(session.count)
    session.suspend(Unavailable("restarting"))
    said = tuple(token.id for token in session.tokens)
    await parts.keeper.stop([Request("r", request.prompt, 1000, continued=said)])
    again = await start()
    assert again.stock.on_disk("", np.array((*request.prompt, *said), np.int32)) >= len(LONG) + 19
    went_on = Session(Request("r", request.prompt, 150, ignore_eos=True, continued=said), again.keeper)
    again.keeper.submit(went_on.request, went_on.feed)
    await went_on.finished()
    assert went_on.cached_tokens == len(LONG) - 1
    assert again.keeper.warmth.loads == 1


async def test_it_lets_go_of_the_folder_for_another_one_and_requests_still_pass(start: StartKeeper) -> None:
    first = await start()
    for number in range(4):
        await first.ask(LONG, id=str(number), caller=Caller(session=str(number)))
    await first.to_disk_only(LONG)
    await first.keeper.let_go()
    assert first.stock.shelf is None
    other = await start()
    assert (await other.ask(LONG + "x")).cached_tokens == len(LONG), "what the first one stored"
    assert (await first.ask(LONG)).text == LONG[:5]
    await first.keeper.stop()


async def test_forgetting_erases_history_memory_and_disk(start: StartKeeper) -> None:
    parts = await start(min_sessions=1)
    await parts.ask(LONG)
    await parts.to_disk_only(LONG)
    await parts.ask(LONG)
    assert await parts.keeper.forget() == 1
    assert parts.keeper.warmth.memory_bytes == parts.keeper.warmth.disk_bytes == 0
    assert parts.keeper.why() == []
    assert (await parts.ask(LONG)).cached_tokens == 0


async def test_off_erases_what_was_stored_and_keeps_nothing(start: StartKeeper) -> None:
    parts = await start()
    await parts.to_disk_only(LONG)
    off = await start(enabled=False)
    assert off.stock.disk_bytes == 0
    assert list((off.stock.shelf or parts.stock.shelf).folder.glob("*.state")) == []  # type: ignore[union-attr]
    assert off.keeper.status()["enabled"] is False


async def test_what_cannot_be_erased_is_told_and_does_not_keep_a_node_from_starting(
    start: StartKeeper, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "states" / "a-folder.state").mkdir(parents=True)
    off = await start(enabled=False)
    assert "could not be erased" in caplog.text
    with pytest.raises(OSError, match=r"a-folder\.state"):
        await off.keeper.forget()


async def test_an_engine_without_states_is_told_and_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from node.engine.blocks import BlockStore
    from node.engine.echo import EchoEngine
    from node.settings import Engine

    worker = Worker(lambda: EchoEngine(Engine(kind="echo"), "echo"))
    await worker.start()
    stock = Stock(BlockStore(0), worker.on_engine)
    keeper = Keeper(Prewarm(), worker, History(Prewarm()), stock)
    with caplog.at_level(logging.WARNING):
        await keeper.start(tmp_path, lambda folder: "print")
    assert "read in full" in caplog.text
    parts = Parts(keeper, stock, worker)
    assert (await parts.ask(LONG)).text == LONG[:5]
    assert keeper.warm_share(tuple(LONG.encode()), Caller()) == 0.0
    assert keeper.status()["usable"] is False
    await keeper.stop()
    await worker.stop()


async def test_forgetting_erases_what_another_engine_left_on_disk(start: StartKeeper, tmp_path: Path) -> None:
    """A node that changed to an engine without states is still asked to forget what users wrote."""
    from node.engine.blocks import BlockStore
    from node.engine.echo import EchoEngine
    from node.settings import Engine

    parts = await start()
    await parts.to_disk_only(LONG)
    assert list((tmp_path / "states").glob("*.state"))
    worker = Worker(lambda: EchoEngine(Engine(kind="echo"), "echo"))
    await worker.start()
    keeper = Keeper(Prewarm(), worker, History(Prewarm()), Stock(BlockStore(0), worker.on_engine))
    await keeper.start(tmp_path / "states", lambda folder: "another")
    await keeper.forget()
    assert not list((tmp_path / "states").glob("*.state"))
    await keeper.stop()
    await worker.stop()


async def test_forgetting_waits_for_a_folder_that_is_being_opened(
    start: StartKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = await start()
    await parts.to_disk_only(LONG)
    monkeypatch.setattr(keepers, "_OPEN_S", 0.0)
    hashed = threading.Event()

    def slowly(folder: Path) -> str:
        assert hashed.wait(60)
        return "print"

    again = Keeper(Prewarm(), parts.worker, History(Prewarm()), Stock(parts.stock.memory, parts.worker.on_engine))
    await again.start(tmp_path / "states", slowly)
    forgetting = asyncio.create_task(again.forget())
    await asyncio.sleep(0)  # it begins
    hashed.set()
    await forgetting
    await until(lambda: again._opening is not None and again._opening.done())
    assert not list((tmp_path / "states").glob("*.state"))
    await again.stop()


async def test_status_has_budgets_costs_and_history(start: StartKeeper) -> None:
    parts = await start()
    await parts.ask(LONG)
    status = parts.keeper.status()
    assert status["memory_budget"] == 1 << 20
    assert status["disk_budget"] == 1 << 30
    assert status["prefill_ms_per_token"] == 1000
    assert status["history"]["nodes"] == 1
    assert status["requests"] == 1
