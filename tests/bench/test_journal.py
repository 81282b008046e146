"""The journal's benchmark, small."""

from __future__ import annotations

from pathlib import Path

from node.bench.journal import MOST_WAIT_S, STREAMS, Plan, Turn, figures, waits


async def test_every_token_is_waited_for(tmp_path: Path) -> None:
    waited = await waits(tmp_path / "node.db", Plan(steps=3), lambda _: None)
    assert len(waited) == 3 * STREAMS
    assert all(wait > 0 for wait in waited)


def test_figures_judge_both_promises() -> None:
    share, wait = figures([Turn(100.0, 99.0), Turn(100.0, 97.0), Turn(100.0, 100.0)], [0.001] * 99 + [0.5])
    assert share.value == 0.99
    assert share.met
    assert wait.value <= MOST_WAIT_S * 1000
    assert figures([Turn(100.0, 90.0)], [0.1])[0].met is False
