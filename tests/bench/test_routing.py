"""What routing costs: the figures are taken, and mean what they say."""

from __future__ import annotations

import pytest

from node.bench import routing
from node.bench.routing import Crowd, Plan, routed
from node.errors import Unavailable
from node.generation import Caller, Request

PLAN = Plan(neighbours=50, decisions=20, prompt_tokens=50, tokens=100)


async def test_three_figures_with_targets() -> None:
    figures = await routing.figures(PLAN)
    assert [figure.unit for figure in figures] == ["ms", "ms", "µs"]
    assert all(figure.met is not None and figure.value > 0 for figure in figures)
    assert "50 neighbours" in figures[0].name
    assert figures[0].value < 50, "even on a machine that does other things"


async def test_every_neighbour_is_looked_at() -> None:
    looked = []
    router, local = routed(PLAN, lambda neighbour, request: looked.append(neighbour.id) or 0.5)  # type: ignore[func-returns-value]
    decision = router.decide(Request("r", (1,) * 10, 5, caller=Caller("t")), {})
    assert len(set(looked)) == 50
    assert decision.place == "local"
    assert len(decision.others) == 50
    assert not local.sinks


def test_the_crowd_changes_with_each_look_and_is_only_simulated() -> None:
    crowd = Crowd(3)
    assert [one.sight for one in crowd.candidates()] != [one.sight for one in crowd.candidates()]
    crowd.doubt("x", "y")
    with pytest.raises(Unavailable):
        crowd.session("x")
