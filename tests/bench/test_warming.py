"""What warming costs and gives, on nodes that are really started and really killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node.bench.warming import Plan, Round, Warming, figures, remember
from node.prewarm.history import History
from node.settings import Prewarm
from node.store.db import Database
from node.store.prefixes import PrefixStore


def test_both_promises() -> None:
    steady, worse = (0.03,) * 200, (0.03,) * 190 + (0.05,) * 10
    gap, ttft = figures(
        [Round(steady, steady, 2.0, 0.2), Round(steady, worse, 2.0, 0.9), Round(steady, steady, 2, 0.1)]
    )
    assert (gap.value, gap.met) == (pytest.approx(1.0), True)
    assert (ttft.value, ttft.met) == (pytest.approx(0.1), True)
    assert ttft.detail == "200 / 2000 ms"
    gap, ttft = figures([Round(steady, worse, 2.0, 0.9)])
    assert (gap.met, ttft.met) == (False, False)


async def test_a_history_that_was_written_is_offered(tmp_path: Path) -> None:
    await remember(tmp_path / "node.db", "model", 5, 70)
    database = Database(tmp_path / "node.db")
    await database.open()
    history = History(Prewarm(min_sessions=1), PrefixStore(database, "model"))
    await history.load()
    assert max(candidate.tokens for candidate in history.candidates()) == 70
    assert sum(candidate.tokens == 70 for candidate in history.candidates()) == 5
    await history.close()
    await database.close()


async def test_a_round_on_nodes(tmp_path: Path) -> None:
    said: list[str] = []
    plan = Plan(1, streams=2, stream_tokens=40, prefixes=10, prefix_tokens=100, prompt_tokens=300)
    run = Warming(["engine.kind=echo"], "echo", tmp_path / "node", plan, said.append)
    await run.run()
    assert len(said) == run.runs == 4
    (seen,) = run.rounds
    assert seen.without
    assert seen.beside
    assert seen.cold_s > 0
    assert seen.restored_s > 0
    assert os.listdir(tmp_path) == [], "nothing is left"
