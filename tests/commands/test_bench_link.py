"""`outpost bench link` on the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from node.cli import main


def test_one_cell_with_its_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "stalls.csv"
    main(["bench", "link", "--cells", "9.6 kbit", "--csv", str(file), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert [figure["name"] for figure in said["figures"]][:2] == [
        "6 · 9.6 kbit/s: whole",
        "6 · 9.6 kbit/s: stall ratio",
    ]
    header, row = csv.reader(file.read_text().splitlines())
    assert header == ["row", "cell", "loss", "link", "eloquent", "floor"]
    assert row[:3] == ["6", "9.6 kbit/s", "0.05"]


def test_cells_that_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "link", "--cells", "nonsense"]) == 1
    assert "nonsense" in capsys.readouterr().err
