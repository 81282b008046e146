"""What drafts are worth is told from pairs of answers."""

from __future__ import annotations

import math

import pytest

from node.bench import drafts
from node.bench.drafts import Answer, Drafting, Pairs, Plan, figures
from node.bench.process import NodeProcess
from node.client import Client


def pairs(*ratios: float, texts: str = "same") -> Pairs:
    """Answers of 21 tokens in a second, and so many times as fast."""
    plain = [Answer("same", 21, 1.0) for _ in ratios]
    return Pairs(plain, [Answer(texts, 21, 1.0 / ratio) for ratio in ratios])


def test_only_answers_that_are_the_same_and_long_enough_are_compared() -> None:
    seen = pairs(1.5, 2.0)
    assert seen.ratios == pytest.approx([1.5, 2.0])
    seen.plain += [Answer("x", 21, 1.0), Answer("short", 5, 1.0)]
    seen.drafted += [Answer("y", 21, 0.1), Answer("short", 5, 0.1)]
    assert seen.ratios == pytest.approx([1.5, 2.0])
    assert seen.alike == pytest.approx(3 / 4)


def run_of(again: float, sampled: float, fresh: float, texts: str = "same") -> Drafting:
    run = Drafting(None, None, ["q"], Plan(), lambda _: None)  # type: ignore[arg-type]
    run.greedy.askings = (pairs(1.0, 1.0), pairs(again, again + 0.1), pairs(again, again + 0.2))
    run.sampled.askings = (pairs(1.0), pairs(sampled), pairs(sampled, texts=texts))
    run.fresh = pairs(fresh)
    return run


def test_all_promises() -> None:
    found = {figure.name: figure for figure in figures(run_of(1.6, 1.4, 0.99))}
    assert all(figure.met is not False for figure in found.values())
    assert found["asked again, greedy, with drafts / without"].value == pytest.approx(1.65)
    assert found["first asking, greedy, with drafts / without"].met is None
    assert found["greedy answers that are the same"].value == 1
    assert "by asking 1.000, 1.000, 1.000" in found["greedy answers that are the same"].detail


def test_what_is_missed_is_told() -> None:
    missed = {figure.name for figure in figures(run_of(1.2, 1.1, 0.9, texts="other")) if figure.met is False}
    assert missed == {
        "asked again, greedy, with drafts / without",
        "asked again, temperature 0.7, with drafts / without",
        "texts without repetition, with drafts / without",
        "answers at 0.7 that are the same",
    }


def test_without_any_comparable_answer_nothing_is_met() -> None:
    run = run_of(1.6, 1.4, 1.0)
    run.fresh = Pairs()
    found = {figure.name: figure for figure in figures(run)}
    assert math.isnan(found["texts without repetition, with drafts / without"].value)
    assert found["texts without repetition, with drafts / without"].met is False


async def test_a_run_on_nodes(echo_process: NodeProcess) -> None:
    said: list[str] = []
    async with Client(echo_process.url) as client:
        run = Drafting(client, client, ["one question", "another"], Plan(3, 12, 2, 12), said.append)
        await run.run()
    assert len(said) == run.runs == 2 * drafts.ASKINGS + 1
    assert [answer.text for answer in run.greedy.askings[2].drafted] == ["one question", "another", "one question"]
    assert run.sampled.askings[0].alike == 1
    assert len(run.fresh.ratios) == 2
