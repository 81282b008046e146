"""The CSV and the picture of `outpost bench link`."""

from __future__ import annotations

import csv
from pathlib import Path

from node.bench.stallplot import Point, lines, plot, write_csv

POINTS = [
    Point(False, 1, "150 ms, 50/s, 5%", 5.0, "link", 0.93),
    Point(False, 1, "150 ms, 50/s, 2%", 2.0, "link", 0.0),
    Point(True, 1, "live, 150 ms, 50/s, 5%", 5.0, "link", 1.2),
    Point(False, 3, "bursts of 3, 20/s, 10%", 10.0, "link", 7.0),
]


def test_every_point_is_a_line_of_the_file(tmp_path: Path) -> None:
    write_csv(POINTS, tmp_path / "stalls.csv")
    with (tmp_path / "stalls.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == ["simulated", "simulated", "live", "simulated"]
    assert rows[0] == {
        "path": "simulated",
        "row": "1",
        "cell": "150 ms, 50/s, 5%",
        "loss": "5",
        "scheme": "link",
        "stall": "0.930",
    }


def test_only_cells_that_differ_in_loss_alone_are_drawn() -> None:
    assert lines(POINTS) == {("link", False): [(2.0, 0.1), (5.0, 0.93)], ("link", True): [(5.0, 1.2)]}


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    plot(POINTS, tmp_path / "stalls.png")
    assert (tmp_path / "stalls.png").read_bytes().startswith(b"\x89PNG")
