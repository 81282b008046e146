"""The Pareto front, and the files that show it."""

from __future__ import annotations

import builtins
import csv
import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.bench import front
from node.bench.front import Point, pareto, plot, write_csv
from node.errors import OperatorError


def point(throughput: float, ttft_p95_s: float, setting: str = "as set", rate: float = 1.0) -> Point:
    return Point(setting, rate, throughput, throughput / 2, 0.9, ttft_p95_s / 2, ttft_p95_s, 0.02, 0.05)


def test_what_another_beats_in_both_is_not_on_the_front() -> None:
    slow, quick, beaten, most = point(50, 0.1), point(80, 0.2), point(70, 0.3), point(100, 0.9)
    assert pareto([most, beaten, slow, quick]) == [slow, quick, most]
    assert pareto([]) == []


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=30))
def test_the_front_beats_everything_else(pairs: list[tuple[int, int]]) -> None:
    points = [point(throughput, ttft) for throughput, ttft in pairs]
    found = pareto(points)
    for one in points:
        assert any(best.throughput >= one.throughput and best.ttft_p95_s <= one.ttft_p95_s for best in found)
    for first, second in itertools.pairwise(found):
        assert first.throughput < second.throughput
        assert first.ttft_p95_s < second.ttft_p95_s


def test_a_table_of_all_points(tmp_path: Path) -> None:
    write_csv([point(50, 0.1), point(40, 0.2, "engine.slots=4")], tmp_path / "front.csv")
    rows = list(csv.DictReader((tmp_path / "front.csv").read_text().splitlines()))
    assert [(row["setting"], row["throughput"], row["on_front"]) for row in rows] == [
        ("as set", "50", "1"),
        ("engine.slots=4", "40", "0"),
    ]
    with pytest.raises(OperatorError, match="Cannot write"):
        write_csv([], tmp_path / "no" / "front.csv")


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `bench` is not installed")
    front.need_plotting()
    points = [point(50, 0.1), point(80, 0.5, rate=2), point(40, 0.2, "engine.slots=4")]
    plot(points, tmp_path / "front.png")
    assert (tmp_path / "front.png").read_bytes().startswith(b"\x89PNG\r\n")
    with pytest.raises(OperatorError, match="Cannot write"):
        plot(points, tmp_path / "no" / "front.png")


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name == "matplotlib":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(OperatorError, match="matplotlib") as caught:
        front.need_plotting()
    assert "--extra bench" in (caught.value.hint or "")
