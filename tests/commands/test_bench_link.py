"""`outpost bench link` on the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from node.bench.live import hosts
from node.cli import main


def test_one_cell_with_its_csv_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "stalls.png"
    main(["bench", "link", "--only", "simulated", "--cells", "9.6 kbit", "--plot", str(picture), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert [figure["name"] for figure in said["figures"]][:2] == [
        "6 · 9.6 kbit/s: whole",
        "6 · 9.6 kbit/s: stall ratio",
    ]
    header, *rows = csv.reader(picture.with_suffix(".csv").read_text().splitlines())
    assert header == ["path", "row", "cell", "loss", "scheme", "stall"]
    assert [row[4] for row in rows] == ["link", "eloquent", "eloquent with our timeout", "XOR 3:1", "floor"]
    assert rows[0][:4] == ["simulated", "6", "9.6 kbit/s", "5"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_replies_that_are_bent_and_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "link", "--cells", "bent and cut", "--replies", "50", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [figure["value"] for figure in said["figures"]] == [0, 0]
    assert "50 replies" in said["figures"][0]["detail"]


def test_radio_frames(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "link", "--only", "radio", "--cells", "errors 0.001", "--frames", "50", "--json"]) == 0
    wrong, lost = json.loads(capsys.readouterr().out)["figures"]
    assert (wrong["name"], wrong["value"]) == ("radio · bit errors 0.001: wrong texts", 0)
    assert "50 frames" in wrong["detail"]
    assert lost["unit"] == "%"


def test_frames_in_noise(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "link", "--quick", "--cells", "frames in noise", "--json"]) == 0
    assert [figure["value"] for figure in json.loads(capsys.readouterr().out)["figures"][:3]] == [100, 0, 0]


def test_without_root_the_live_cells_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hosts, "obstacle", lambda: "only root may")
    assert main(["bench", "link", "--only", "live", "--quick", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["figures"][0]["name"] == "live cells: left out"
    assert said["figures"][0]["detail"] == "only root may"


def test_cells_that_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "link", "--cells", "nonsense"]) == 1
    assert "nonsense" in capsys.readouterr().err
