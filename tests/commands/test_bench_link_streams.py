"""`outpost bench link-streams` on the command line."""

from __future__ import annotations

import json

import pytest

from node.bench import linkflood, linkstreams
from node.bench.linkcrowd import Heard
from node.bench.linkstreams import Plan, Seen
from node.bench.report import Figure
from node.cli import main

TIMES = [i / 20 for i in range(100)]
RAN: list[tuple[Plan, bool]] = []
FLOODED: list[float] = []


@pytest.fixture(autouse=True)
def _no_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    RAN.clear()
    FLOODED.clear()

    async def run(plan: Plan, *, watched: bool = False) -> Seen:
        RAN.append((plan, watched))
        heard = [Heard("x" * 100, TIMES, [1] * 100, ["x"] * 100, whole=True)] * plan.streams
        return Seen(plan, heard, 0.0, 5.0, 1.0, 1.0, 20_000, 0, {"crypto": 1, "asyncio": 3} if watched else {})

    async def figures(seconds: float, tell: object) -> list[Figure]:
        FLOODED.append(seconds)
        return [Figure("garbage: answers exact", 100, "%", at_least=100)]

    monkeypatch.setattr(linkstreams, "run", run)
    monkeypatch.setattr(linkflood, "figures", figures)


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    return {figure["name"]: figure["value"] for figure in json.loads(capsys.readouterr().out)["figures"]}


def test_both_parts_with_the_breakdown_of_the_first_crowd(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "link-streams", "--json"]) == 0
    assert [(plan.streams, watched) for plan, watched in RAN] == [(1, False), (200, False), (1000, False), (200, True)]
    assert FLOODED == [5.0]
    found = said(capsys)
    assert found["200 streams: node's CPU a datagram"] == pytest.approx(50)
    assert found["of 50 µs: asyncio"] == pytest.approx(37.5)
    assert found["1,000 streams: exact"] == 100
    assert found["garbage: answers exact"] == 100


def test_one_part_and_other_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "link-streams", "--only", "streams", "--streams", "3,5", "--quick", "--json"]) == 0
    assert [plan.streams for plan, _ in RAN] == [1, 3, 5, 3]
    assert {plan.tokens for plan, _ in RAN} == {160}
    assert not FLOODED
    assert main(["bench", "link-streams", "--only", "floods", "--seconds", "3", "--quick", "--json"]) == 0
    assert len(RAN) == 4
    assert FLOODED == [1.5]


@pytest.mark.parametrize("words", [["--streams", "0"], ["--streams", "x"], ["--only", "nothing"], ["--seconds", "99"]])
def test_what_makes_no_sense_is_refused(words: list[str]) -> None:
    assert main(["bench", "link-streams", *words]) == 2
    assert not RAN
