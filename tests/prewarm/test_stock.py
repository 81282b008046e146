"""States in memory, on disk, and still to be read: one move at a time."""

from __future__ import annotations

import asyncio
import logging
import resource
from pathlib import Path

import pytest

from node.engine.answers import Answers
from node.engine.base import Engine
from node.engine.blocks import BLOCK
from node.engine.worker import Worker
from node.generation import Caller, Request
from node.prewarm.stock import Stock
from node.stream.session import Session
from tests.prewarm.conftest import StartStock, text

LONG = text(
    "The museum opens at nine and closes at five; the cafe on the roof sells cake, tea and soup until four. Dogs wait "
    "outside, children pay nothing, and the boat to the island leaves from the pier twice a day, but on Mondays once."
)


async def read(stock: Stock, owner: str | None, ids: object = LONG) -> None:
    while await stock.read(owner, ids):  # type: ignore[arg-type]
        pass


async def test_reading_goes_block_by_block_and_ends(start_stock: StartStock) -> None:
    stock, _ = await start_stock()
    lengths = []
    while await stock.read("a", LONG):
        lengths.append(stock.in_memory("a", LONG))
    assert lengths == [64, 128, 192, len(LONG)]
    assert stock.in_memory("b", LONG) == 0


async def test_nothing_is_read_while_a_request_is_about(start_stock: StartStock) -> None:
    stock, worker = await start_stock()
    session = Session(Request("r", tuple(b"x" * 2000), 2000), worker)
    worker.submit(session.request, session.feed)
    assert not await stock.read("a", LONG)
    session.cancel()
    assert await stock.read("a", LONG)
    assert stock.in_memory("a", LONG) == BLOCK


async def test_what_is_saved_comes_back_and_costs_are_learned(start_stock: StartStock) -> None:
    stock, _ = await start_stock()
    await read(stock, "a")
    assert await stock.save("a", LONG, 1 << 20)
    assert (stock.saves, stock.on_disk("a", LONG)) == (1, len(LONG))
    assert not await stock.save("a", LONG, 1 << 20), "it is there already"
    guess = stock.costs.load_s
    stock.memory.clear()
    assert stock.worth_loading("a", LONG)
    assert await stock.load("a", LONG) == len(LONG)
    assert stock.loads == 1
    assert stock.costs.load_s != guess
    assert stock.costs.memory_bytes == 4
    assert not stock.worth_loading("a", LONG), "memory has it"


async def test_several_that_want_the_same_state_load_it_once(start_stock: StartStock) -> None:
    stock, _ = await start_stock()
    await read(stock, "a")
    await stock.save("a", LONG, 1 << 20)
    stock.memory.clear()
    assert await asyncio.gather(*(stock.load("a", LONG) for _ in range(4))) == [len(LONG)] * 4
    assert stock.loads == 1


async def test_loading_is_not_worth_it_where_reading_is_faster(start_stock: StartStock) -> None:
    stock, _ = await start_stock()
    await read(stock, "a")
    await stock.save("a", LONG, 1 << 20)
    stock.memory.clear()
    stock._load_s.append(2.0)
    assert not stock.worth_loading("a", LONG)
    stock._load_s.append(0.5)
    stock._load_s.append(3.0)
    assert stock.worth_loading("a", LONG), "one was disturbed"
    assert not stock.worth_loading("a", LONG[: BLOCK - 1]), "less than a block"


async def test_what_is_not_all_in_memory_is_not_saved(start_stock: StartStock) -> None:
    stock, _ = await start_stock()
    await stock.read("a", LONG)
    assert not await stock.save("a", LONG, 1 << 20)


async def test_a_longer_prefix_saves_its_new_part_and_not_what_follows(start_stock: StartStock) -> None:
    stock, _ = await start_stock()
    await read(stock, "a")
    assert await stock.save("a", LONG[:100], 1 << 20)
    first = stock.disk_bytes
    assert await stock.save("a", LONG, 1 << 20)
    assert stock.shelf
    assert [file.start for file in stock.shelf.files] == [0, 64]
    stored = b"".join(file.path.read_bytes() for file in stock.shelf.files[:1])
    assert LONG[100:110].tobytes() not in stored
    assert stock.disk_bytes > first
    stock.memory.clear()
    assert await stock.load("a", LONG) == len(LONG)


async def test_the_budget_of_the_disk_holds(start_stock: StartStock) -> None:
    stock, _ = await start_stock()
    await read(stock, "a")
    assert not await stock.save("a", LONG, 500)
    assert stock.disk_bytes == 0


async def test_a_full_disk_is_told_once_and_tried_again_with_the_next_plan(
    start_stock: StartStock, caplog: pytest.LogCaptureFixture
) -> None:
    stock, _ = await start_stock()
    await read(stock, "a")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with caplog.at_level(logging.WARNING):
            assert not await stock.save("a", LONG, 1 << 20)
            assert not await stock.save("a", LONG[:100], 1 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(caplog.records) == 1
    assert stock.shelf
    assert list(stock.shelf.folder.iterdir()) == []
    await stock.keep_on_disk([])
    assert await stock.save("a", LONG, 1 << 20)


@pytest.mark.parametrize("harm", ["flip", "cut", "gone"])
async def test_a_harmed_file_is_removed_told_and_read_again(
    start_stock: StartStock, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    stock, _ = await start_stock()
    await read(stock, "a")
    await stock.save("a", LONG, 1 << 20)
    assert stock.shelf
    (file,) = stock.shelf.files
    content = bytearray(file.path.read_bytes())
    content[-3] ^= 4
    if harm == "gone":
        file.path.unlink()
    else:
        file.path.write_bytes(content if harm == "flip" else content[:-5])
    stock.memory.clear()
    with caplog.at_level(logging.WARNING):
        assert await stock.load("a", LONG) == 0
    assert len(caplog.records) == 1
    assert (stock.on_disk("a", LONG), list(stock.shelf.folder.iterdir())) == (0, [])
    await read(stock, "a")
    assert await stock.save("a", LONG, 1 << 20)


async def test_another_fingerprint_starts_with_nothing(
    start_stock: StartStock, caplog: pytest.LogCaptureFixture
) -> None:
    stock, _ = await start_stock()
    await read(stock, "a")
    await stock.save("a", LONG, 1 << 20)
    with caplog.at_level(logging.WARNING):
        other, _ = await start_stock(fingerprint="another context size")
    assert other.on_disk("a", LONG) == 0
    assert other.disk_bytes == 0
    assert len(caplog.records) == 1


async def test_what_no_plan_wants_leaves_the_disk_and_forgetting_leaves_nothing(start_stock: StartStock) -> None:
    stock, _ = await start_stock()
    other = text("and where the boat leaves from. " * 5)
    for ids in (LONG, other):
        await read(stock, "a", ids)
        await stock.save("a", ids, 1 << 20)
    await stock.keep_on_disk([("a", other)])
    assert (stock.on_disk("a", LONG), stock.on_disk("a", other)) == (0, len(other))
    await stock.forget(None)
    assert (stock.disk_bytes, stock.memory.bytes) == (0, 0)
    assert stock.shelf
    assert list(stock.shelf.folder.iterdir()) == []


async def test_without_a_folder_everything_is_in_memory_only(
    start_stock: StartStock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "states").write_text("a file where a folder should be")
    with caplog.at_level(logging.WARNING):
        stock, _ = await start_stock()
    assert "not kept on disk" in caplog.text
    await read(stock, "a")
    assert not await stock.save("a", LONG, 1 << 20)
    assert not stock.worth_loading("a", LONG)
    assert await stock.load("a", LONG) == len(LONG)
    await stock.keep_on_disk([])
    await stock.forget(None)


async def test_memory_too_small_for_a_state_ends_the_loading(start_stock: StartStock) -> None:
    stock, _ = await start_stock()
    await read(stock, "a")
    await stock.save("a", LONG, 1 << 20)
    stock.memory.clear()
    stock.memory.confine(2 * 2 * 4 * BLOCK)
    assert await stock.load("a", LONG) == 2 * BLOCK


async def test_forgetting_reaches_past_answers(start_stock: StartStock) -> None:
    stock, worker = await start_stock()
    answers = Answers(1 << 20)
    answers.add(Caller("t", "u", "s"), [1, 2, 3], [4, 5, 6, 7])

    def know(engine: Engine) -> None:
        engine.answers = answers

    await worker.on_engine(know)
    assert answers.bytes
    await stock.forget(None)
    assert not answers.bytes


async def test_an_engine_without_states_makes_nothing_usable() -> None:
    from node.engine.blocks import BlockStore
    from node.engine.echo import EchoEngine
    from node.settings import Engine

    worker = Worker(lambda: EchoEngine(Engine(kind="echo"), "echo"))
    await worker.start()
    stock = Stock(BlockStore(1 << 20), worker.on_engine)
    await stock.ask_engine()
    assert not stock.usable
    assert not await stock.read("a", LONG)
    assert not stock.worth_loading("a", LONG)
    await worker.stop()
