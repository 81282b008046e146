"""The two buffers on real and drawn delays: the promises of the benchmark, and its parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.bench.figures import percentile
from node.bench.pacing import (
    RATE,
    Seen,
    answers,
    arrivals,
    clean_trace,
    drawn_trace,
    figures,
    play,
    read_trace,
    through_link,
)
from node.errors import OperatorError
from node.stream.pacer import Pacer
from node.stream.playout import Playout
from node.stream.quality import stall_ratio

RURAL = Path(__file__).parents[1] / "data" / "cicv5g_rural.csv"


def test_every_promise_holds_on_the_rural_drive() -> None:
    found = {figure.name: figure for figure in figures(read_trace(RURAL))}
    assert [figure.name for figure in found.values() if figure.met is False] == []
    assert sum(figure.met is True for figure in found.values()) == 2


def test_the_playout_buffer_more_than_halves_the_stalls_of_a_real_drive() -> None:
    came = arrivals(read_trace(RURAL))
    shown = play(came, Playout())
    assert stall_ratio(came) == pytest.approx(0.171, abs=0.001)
    assert stall_ratio(shown) < 0.42 * stall_ratio(came)
    assert Seen(0, came, shown).added_s < 1.1


def test_answers_of_one_conversation() -> None:
    seen = answers(read_trace(RURAL))
    assert len(seen) > 15
    assert all(len(one.shown) == len(one.came) for one in seen)
    assert all(show >= come for one in seen for show, come in zip(one.shown, one.came, strict=True))


def test_delivery_is_in_order_and_by_the_delays() -> None:
    trace = [(0.0, 0.1), (0.1, 5.0), (0.2, 0.1), (10.0, 0.1)]
    came = arrivals(trace)
    assert came[:3] == pytest.approx([0.1, 0.15, 5.1])
    assert came[3] == came[4] == pytest.approx(5.15)  # what was late holds up what was not
    assert came == sorted(came)
    assert arrivals(trace, start=9.9) == pytest.approx([10.0, 10.1, 10.1][: len(arrivals(trace, start=9.9))], abs=0.11)
    assert len(arrivals(trace, tokens=7)) == 7


def test_drawn_delays_are_the_same_every_time() -> None:
    assert drawn_trace(seconds=30) == drawn_trace(seconds=30)
    assert drawn_trace(seed=2, seconds=30) != drawn_trace(seconds=30)
    assert max(delay for _, delay in clean_trace()) < 0.03


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "pub_ms,delay_ms\n1,two\n3,4\n", "pub_ms,delay_ms\n1,2\n"])
def test_a_file_that_is_no_trace(text: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(OperatorError, match=r"trace\.csv"):
        read_trace(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="No such file"):
        read_trace(tmp_path / "trace.csv")


@pytest.mark.parametrize(("rate", "p95_s"), [(500, 6), (1000, 3), (2000, 2.5), (4000, 4)])
@pytest.mark.parametrize("trip_s", [0.02, 0.2, 1.2])
def test_a_paced_link_keeps_up_where_a_frame_a_token_cannot(rate: float, p95_s: float, trip_s: float) -> None:
    paced = through_link(rate, trip_s, 400, Pacer())
    assert percentile(paced, 0.95) < p95_s
    assert percentile(paced, 0.95) < percentile(through_link(rate, trip_s, 400, None), 0.95)


@pytest.mark.parametrize("trip_s", [0.02, 0.2, 0.6])
def test_a_link_that_takes_everything_is_not_held_up(trip_s: float) -> None:
    paced, bare = (through_link(20_000, trip_s, 400, pacer) for pacer in (Pacer(), None))
    late = [pace - at for pace, at in zip(paced, bare, strict=True)]
    assert percentile(late, 0.95) < 0.001
    assert max(late) <= trip_s  # once, before the link is known
    assert len(paced) == 400 == int(20 * RATE)
