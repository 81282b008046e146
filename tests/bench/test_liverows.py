"""The bar's rows on the live path: what is asked of whom, and what the answers come to."""

from __future__ import annotations

import pytest

from node.bench import liverows
from node.bench.linkworld import Outcome, Reply
from node.bench.live.ends import PORTS, SCHEMES
from node.bench.liverows import CUBIC, cells, quick, rate, stalls


def test_the_first_cell_shows_what_the_machine_itself_is_late() -> None:
    first = cells()[0].cell
    assert first.conditions.loss == 0
    assert first.stall is None


def test_every_scheme_takes_part_and_has_a_port_of_its_own() -> None:
    assert {scheme for one in cells() for scheme in one.schemes} == set(SCHEMES)
    assert len(set(PORTS.values())) == len(PORTS) == len(SCHEMES) + 1
    assert all(one.schemes[0] == "link" for one in cells())


def test_rows_1_2_and_8_are_there_with_forty_replies_a_cell() -> None:
    assert {one.cell.number for one in cells()} == {0, 1, 2, 8}
    assert all(one.cell.talk.replies * liverows._READERS >= 40 for one in cells())
    assert len({one.cell.name for one in cells()}) == len(cells())
    bent = next(one.cell.conditions for one in cells() if one.cell.number == 8)
    assert bent.corrupt
    assert bent.duplicate
    assert bent.reorder


def test_the_quick_cell_is_one_of_them() -> None:
    (one,) = quick()
    assert one.cell in [other.cell for other in cells()]
    assert CUBIC in one.schemes


def test_a_downloads_rate_is_taken_once_it_has_found_its_pace() -> None:
    slow = [float(i) for i in range(4)]
    steady = [4.0 + i / 100 for i in range(1000)]
    assert rate([*slow, *steady]) == pytest.approx(100, rel=0.01)
    assert rate([]) == rate([1.0]) == 0.0


def test_stalls_are_those_of_whole_replies() -> None:
    whole = Reply([0.0, 1.0], [0.1, 1.2], True)
    broken = Reply([0.0, 1.0], [0.1], False)
    assert stalls({"link": Outcome((whole, broken), 1.0, 0.05)}) == {"link": pytest.approx(10)}
