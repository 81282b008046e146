"""`outpost bench prewarm` on the command line."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from node import cli
from node.commands import bench_prewarm

DATA = Path(__file__).parents[1] / "data"
WORDS = ["--data", str(DATA / "bfcl_live"), "--trace", str(DATA / "azure_conv.csv")]


@pytest.fixture(autouse=True)
def _no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of this machine reach the tests; the weights may."""
    for name in [name for name in os.environ if name.startswith("OUTPOST_") and name != "OUTPOST_HOME"]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "VERBS", ("bench",))


@pytest.mark.parametrize("promise", ["0.88", "1.25 x", "0.5 x", "0.15 x", "5 points"])
def test_help_says_what_is_promised(promise: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "prewarm", "--help"]) == 0
    assert promise in capsys.readouterr().out


def test_data_and_trace_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "prewarm"]) == 2
    assert "--data" in capsys.readouterr().err


def test_no_requests_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "prewarm", *WORDS, "--requests", "0"]) == 2
    assert "--requests" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "requests"), [([], 40), (["--quick"], 12), (["--requests", "32"], 32), (["--requests", "700"], 600)]
)
def test_how_many_requests_there_are(words: list[str], requests: int) -> None:
    parser = argparse.ArgumentParser()
    bench_prewarm.add_arguments(parser, int)
    assert bench_prewarm.plan_of(parser.parse_args([*WORDS, *words]), 600).requests == requests


def test_it_needs_a_vocabulary(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "prewarm", *WORDS, "--set", "engine.kind=echo"]) == 2
    assert "vocabulary" in capsys.readouterr().err


@pytest.mark.model
def test_the_simulation_needs_no_node(weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["bench", "prewarm", *WORDS, "--quick", "--simulate"])
    out, err = capsys.readouterr()
    assert "as listed" in out
    assert "shuffled" in out
    assert "50 requests after 100" in out
    assert "simulation" in err
    assert code == (1 if "MISSED" in out else 0)
