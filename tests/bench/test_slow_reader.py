from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from node.bench.process import NodeProcess
from node.bench.slow_reader import Plan, Round, SlowReader, figures, take_slowly
from node.client import Client

MIB = 1 << 20


def test_both_promises() -> None:
    rounds = [Round((0.02,) * 20, 100 * MIB, (0.021,) * 20, (100 + more) * MIB) for more in (2, 3, 40)]
    gap, memory = figures(rounds)
    assert (gap.value, gap.met) == (pytest.approx(1.05), True)
    assert (memory.value, memory.met) == (3, True)
    assert "1.05, 1.05, 1.05" in gap.detail
    assert "most 40.0 MiB" in memory.detail


def test_the_others_may_not_be_held_up() -> None:
    gap, memory = figures([Round((0.02,) * 20, 100 * MIB, (0.03,) * 20, 120 * MIB)])
    assert (gap.met, memory.met) == (False, False)


async def test_a_round_on_a_node(echo_process: NodeProcess) -> None:
    said: list[str] = []
    async with Client(echo_process.url) as client:
        run = SlowReader(echo_process, client, Plan(1, readers=3, tokens=100), said.append)
        await run.run()
    assert len(said) == run.runs == 2
    assert run.rounds[0].usual
    assert run.rounds[0].beside
    assert run.rounds[0].beside_rss > 0


async def test_the_slow_reader_reads(echo_process: NodeProcess) -> None:
    task = asyncio.create_task(take_slowly(echo_process.url, 2000))
    await asyncio.sleep(0.5)
    assert not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
