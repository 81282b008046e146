"""What many streams cost: the arithmetic on made-up runs, and one small run on a real, watched node."""

from __future__ import annotations

import pytest

from node import layers
from node.bench.ledger import IDLE, WATCHED
from node.bench.linkcrowd import Heard
from node.bench.linkstreams import MOST_SMOOTH, Plan, Seen, breakdown, figures, plan_for, run, stall
from node.bench.report import Figure
from node.errors import OperatorError


def heard(times: list[float], sizes: list[int] | None = None) -> Heard:
    sizes = sizes or [1] * len(times)
    return Heard("x" * sum(sizes), times, sizes, ["x" * size for size in sizes], whole=True)


def seen(streams: int, heards: list[Heard], **more: object) -> Seen:
    values = {"begin": 0.0, "end": 10.0, "node_cpu_s": 5.0, "client_cpu_s": 2.0, "datagrams": 50_000}
    return Seen(Plan(streams), heards, **{**values, "grown": 0, "spent": {}, **more})  # type: ignore[arg-type]


STEADY = [i * 0.05 for i in range(201)]


def of(found: list[Figure], name: str) -> Figure:
    (figure,) = [one for one in found if one.name == name]
    return figure


def test_a_stall_is_what_comes_later_than_it_is_made() -> None:
    assert stall(STEADY, 0.05) == 0
    assert stall([0.0, 0.05, 0.1, 0.2, 0.2, 0.25], 0.05) == pytest.approx(20)
    assert stall([0.0, 0.052, 0.102], 0.05) == 0, "too short to be noticed"
    assert stall([1.0], 0.05) == 100, "nothing came"


def test_a_smooth_run_meets_every_target() -> None:
    alone = seen(1, [heard(STEADY)])
    many = seen(3, [heard(STEADY)] * 3, grown=3 * 40 * 1024)
    found = list(figures(alone, [many]))
    assert all(figure.met is not False for figure in found)
    assert of(found, "3 streams: node's CPU a datagram").value == pytest.approx(100)
    assert of(found, "3 streams: memory a stream").value == 40
    assert of(found, "3 streams: tokens a chunk").value == 1


def test_what_the_engine_made_late_is_told_beside_it() -> None:
    """The reader sees both; the figure says which part is not the links'."""
    late = [at + (0.02 if i % 2 else 0.0) for i, at in enumerate(STEADY)]
    found = list(figures(seen(1, [heard(STEADY)]), [seen(2, [heard(late)] * 2, made=[-1.0, *late, 11.0])]))
    engine = of(found, "2 streams: stall ratio of the engine itself").value
    assert engine == pytest.approx(of(found, "2 streams: stall ratio over one stream's").value) == pytest.approx(20)


def test_one_that_starves_one_that_is_late_and_one_that_is_wrong_are_seen() -> None:
    late = [at + (0.02 if i % 2 else 0.0) for i, at in enumerate(STEADY)]
    wrong = heard(STEADY)
    wrong.pieces[7] = "y"
    many = seen(3, [heard(late), heard(STEADY[:100]), wrong], datagrams=10_000, grown=1 << 20)
    missed = {figure.name for figure in figures(seen(1, [heard(STEADY)]), [many]) if figure.met is False}
    assert missed == {
        "3 streams: exact",
        "3 streams: stall ratio over one stream's",
        "3 streams: the slowest / the median",
        "3 streams: node's CPU a datagram",
        "3 streams: memory a stream",
    }


def test_a_node_that_has_too_many_coalesces_and_is_judged_by_that() -> None:
    bunched = heard(STEADY[::4], [4] * len(STEADY[::4]))
    streams = MOST_SMOOTH + 1
    found = list(figures(seen(1, [heard(STEADY)]), [seen(streams, [bunched] * streams, datagrams=1000)]))
    assert all(figure.met is not False for figure in found)
    assert of(found, f"{streams} streams: tokens a chunk").value == 4
    assert of(found, f"{streams} streams: stall ratio over one stream's").value > 50


def test_shares_are_of_what_was_not_idle() -> None:
    watched = seen(1, [heard(STEADY)], spent={IDLE: 10**9, "crypto": 10, "asyncio": 30})
    assert [(one.name, one.value) for one in breakdown(watched, 100)] == [
        ("of 100 µs: asyncio", 75),
        ("of 100 µs: crypto", 25),
    ]


@pytest.mark.parametrize("streams", [1, 200, 1000])
def test_the_settings_of_a_plan_exist(streams: int) -> None:
    flags = dict(change.split("=", 1) for change in Plan(streams).changes)
    settings = layers.load(environment={}, flags=flags)
    assert settings.engine.slots >= streams
    assert settings.link.max_links > streams


async def test_streams_that_never_run_together_are_no_measurement() -> None:
    with pytest.raises(OperatorError, match="2 streams never ran together"):
        await run(Plan(2, tokens=10, rate=100, settle_s=2.0))


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("streams", [1, MOST_SMOOTH, MOST_SMOOTH + 1, 1000])
def test_every_plan_leaves_time_to_measure(streams: int, quick: bool) -> None:
    plan = plan_for(streams, quick=quick)
    assert plan.streams == streams
    assert plan.tokens / plan.rate - plan.over_s - plan.settle_s >= 4


async def test_a_few_streams_on_a_watched_node() -> None:
    found = await run(Plan(5, tokens=60, rate=40, settle_s=0.2), watched=True)
    assert [one.exact for one in found.heard] == [True] * 5
    assert found.datagrams > 5
    assert found.node_cpu_s > 0
    assert min(found.counts) > 0
    assert set(found.spent) >= set(WATCHED)
    assert sum(found.spent.values()) > 0


async def test_an_engine_that_is_not_watched_says_when_it_made_its_tokens() -> None:
    found = await run(Plan(3, tokens=40, rate=40, settle_s=0.1))
    assert not found.spent
    assert list(found.made) == sorted(found.made)
    made = [at for at in found.made if found.begin <= at <= found.end]
    assert len(made) == pytest.approx(max(found.counts), abs=3)
    assert min(min(one.times) for one in found.heard) > found.made[0]
