"""The bar's rows on the live path: what is asked of whom, and what the answers come to."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from node.bench import link, liverows
from node.bench.channel import Conditions
from node.bench.link import Cell
from node.bench.linkworld import Outcome, Reply, Talk
from node.bench.live import hosts
from node.bench.live.ends import PORTS, SCHEMES
from node.bench.liverows import CUBIC, LiveCell, cells, quick, rate, stalls


def test_the_first_cell_shows_what_the_machine_itself_is_late() -> None:
    first = cells()[0].cell
    assert first.conditions.loss == 0
    assert first.stall is None


def test_every_scheme_takes_part_and_has_a_port_of_its_own() -> None:
    assert {scheme for one in cells() for scheme in one.schemes} == set(SCHEMES)
    assert len(set(PORTS.values())) == len(PORTS) == len(SCHEMES) + 1
    assert all(one.schemes[0] == "link" for one in cells())


def test_every_row_is_there_with_forty_replies_a_cell() -> None:
    assert {one.cell.number for one in cells()} == {0, 1, 2, 3, 5, 6, 8}
    assert all(one.cell.talk.replies * one.readers * one.paths >= 40 for one in cells())
    assert len({one.cell.name for one in cells()}) == len(cells())
    bent = next(one.cell.conditions for one in cells() if one.cell.number == 8)
    assert bent.corrupt
    assert bent.duplicate
    assert bent.reorder


def test_the_simulators_cells_are_all_played_with_the_same_targets() -> None:
    live = {one.cell.name: one.cell for one in cells()}
    for cell in link.cells():
        there = live[f"live, {cell.name}"]
        assert there == replace(cell, name=there.name, talk=replace(cell.talk, replies=there.talk.replies, chunks=100))


def test_on_a_narrow_line_the_link_is_alone() -> None:
    narrow = [one for one in cells() if one.cell.conditions.rate < math.inf]
    assert {one.cell.number for one in narrow} == {6}
    assert all((one.schemes, one.readers) == (("link",), 1) for one in narrow)


def test_the_floor_waits_for_the_end_of_a_bad_moment_and_for_nothing_else() -> None:
    ours = Outcome((Reply([1.0, 2.0, 2.5, 3.0], [1.2, 2.9, 2.9, 3.1], True),), 9.0, 0.05)
    (found,) = liverows.floor(ours, [(0.2, 0.4), (1.9, 2.8)]).replies
    assert found.came == pytest.approx([1.05, 2.85, 2.85, 3.05])
    assert liverows.floor(ours, []).replies[0].came == pytest.approx([1.05, 2.05, 2.55, 3.05])


@pytest.mark.skipif(bool(hosts.obstacle()), reason=hosts.obstacle())
def test_a_cell_with_bursts_is_played_on_several_paths_beside_the_floor_of_their_own_weather() -> None:
    bad = Conditions(rtt=0.04, loss=0.2, burst_s=0.1)
    cell = Cell(
        3, "short", bad, Talk(100.0, 1, 120), bursts=True
    )  # long enough that a burst meets it, whenever it began
    found, outcomes = liverows.measure(LiveCell(cell, ("link", "eloquent"), readers=1, paths=2), 1, priority=False)
    assert found[0].value == 100, "whole"
    assert [len(one.replies) for one in outcomes.values()] == [2, 2, 2]
    stalled = stalls(outcomes)
    assert 0 < stalled["floor"] < stalled["link"] + 1, "no scheme is better, but for the clocks' noise"


def test_the_quick_cell_is_one_of_them() -> None:
    (one,) = quick()
    assert one.cell in [other.cell for other in cells()]
    assert CUBIC in one.schemes


def test_a_downloads_rate_is_taken_once_it_has_found_its_pace() -> None:
    slow = [float(i) for i in range(4)]
    steady = [4.0 + i / 100 for i in range(1000)]
    assert rate([*slow, *steady]) == pytest.approx(100, rel=0.01)
    assert rate([]) == rate([1.0]) == 0.0


def test_a_scheme_that_brought_nothing_whole_loses_no_run() -> None:
    nothing = Outcome((Reply([0.0, 1.0], [], False),), 0.0, 0.05)
    assert math.isnan(stalls({CUBIC: nothing})[CUBIC])
    cell = Cell(2, "hopeless", Conditions(rtt=0.15, loss=0.9), Talk(1.0, 1, 2), stall=3, p99_ms=25, last_ms=15)
    found = list(link.figures(cell, {"link": nothing, CUBIC: nothing}, 1))
    assert not any(figure.met for figure in found if "whole" in figure.name or "ms" in figure.unit)
    assert list(liverows._bytes(cell, {"link": nothing, CUBIC: nothing})) == []


def test_stalls_are_those_of_whole_replies() -> None:
    whole = Reply([0.0, 1.0], [0.1, 1.2], True)
    broken = Reply([0.0, 1.0], [0.1], False)
    assert stalls({"link": Outcome((whole, broken), 1.0, 0.05)}) == {"link": pytest.approx(10)}
