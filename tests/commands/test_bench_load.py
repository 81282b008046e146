"""`outpost bench load` from the command line."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import pytest

from node import cli
from node.bench.prompts import QUESTIONS
from node.bench.workload import DEFAULT_MIX
from node.commands import bench_load

DATA = Path(__file__).parents[1] / "data"
QUICK = ["bench", "load", "--set", "engine.kind=echo", "--rounds", "1", "--seconds", "0.5", "--rate", "20"]


@pytest.fixture(autouse=True)
def _no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of this machine reach the tests."""
    for name in [name for name in os.environ if name.startswith("OUTPOST_") and name != "OUTPOST_HOME"]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "VERBS", ("bench",))


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench_load.add_arguments(parser)
    return parser.parse_args(words)


def test_the_plan_of_a_command_line() -> None:
    plan = bench_load.plan_of(parsed())
    assert (plan.times, plan.rates, plan.closed, plan.rounds) == ((2.0,), (), 0, 2)
    assert (plan.mixture.mix, plan.mixture.texts, plan.rows) == (DEFAULT_MIX, QUESTIONS, None)
    words = ["--times", "0.5,1", "--mix", "critical=1", "--gap-ms", "50", "--surge", "3", "--seed", "7", "--quick"]
    files = ["--trace", str(DATA / "azure_conv.csv"), "--texts", str(DATA / "clinc150.txt")]
    plan = bench_load.plan_of(parsed(*words, *files))
    assert (plan.times, plan.gap_s, plan.surge, plan.seed, plan.rounds, plan.seconds) == ((0.5, 1), 0.05, 3, 7, 1, 8)
    assert plan.rows is not None
    assert len(plan.rows) == 1200
    assert len(plan.mixture.texts) == 600


def test_against_another_setting(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main([*QUICK, "--compare", "queue.policy=fifo queue.max_waiting=9", "--json"])
    out, err = capsys.readouterr()
    report = json.loads(out)
    names = [figure["name"] for figure in report["figures"]]
    assert "goodput / with queue.policy=fifo queue.max_waiting=9" in names
    assert "as set: goodput" in names
    assert code == (0 if report["met"] else 1)
    assert "[3 of 3 turns]  round 1, 20.00 requests/s, queue.policy=fifo queue.max_waiting=9" in err


def test_a_plot_and_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="the extra `bench` is not installed")
    cli.main([*QUICK[:-1], "10,20", "--plot", "front.png"])
    assert "throughput against latency: front.png" in capsys.readouterr().out
    assert (tmp_path / "front.png").stat().st_size > 1000
    assert len((tmp_path / "front.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["--compare", "queue.polcy=fifo"], 2, "queue.polcy"),
        (["--compare", "queue.policy"], 2, "--compare takes KEY=VALUE"),
        (["--compare", ""], 2, "--compare takes KEY=VALUE"),
        (["--compare", "queue.policy=lifo"], 2, "lifo"),
        (["--mix", "urgent=1"], 2, "--mix"),
        (["--times", "0"], 2, "--times"),
        (["--rate", "x"], 2, "--rate"),
        (["--closed", "0"], 2, "--closed"),
        (["--trace", "none.csv"], 1, "none.csv"),
        (["--texts", "none.txt"], 1, "none.txt"),
    ],
)
def test_wrong_use_is_told_before_anything_runs(
    words: list[str], code: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "load", "--set", "engine.kind=echo", *words]) == code
    assert complaint in capsys.readouterr().err


def test_help_says_what_is_promised(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "load", "--help"]) == 0
    out = capsys.readouterr().out
    for promise in ("1.5 x", "90%", "critical=10,interactive=25", "--compare queue.policy=fifo"):
        assert promise in out


def test_virtual_time_needs_no_node(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "bench",
        "load",
        "--virtual",
        "--seconds",
        "20",
        "--rounds",
        "1",
        "--compare",
        "queue.policy=fifo",
        "--json",
    ]
    cli.main(words)
    report = json.loads(capsys.readouterr().out)
    names = [figure["name"] for figure in report["figures"]]
    assert "goodput / with queue.policy=fifo" in names
    assert any("virtual time" in fact for fact in report["facts"])


def test_virtual_time_is_open_loop(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "load", "--virtual", "--closed", "4"]) == 2
    assert "--closed" in capsys.readouterr().err
