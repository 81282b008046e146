from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from node import cli
from node.bench.report import Figure, Report
from node.commands import bench


@pytest.fixture(autouse=True)
def _no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of this machine reach the tests."""
    for name in [name for name in os.environ if name.startswith("OUTPOST_") and name != "OUTPOST_HOME"]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "VERBS", ("bench",))


def test_soak_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["bench", "soak", "--minutes", "0.02", "--clients", "70", "--set", "engine.kind=echo"])
    out, err = capsys.readouterr()
    assert "replies that were not whole" in out
    assert "0 replies" in out  # also with more clients than the queue takes by default
    assert "the echo engine" in out
    assert code == (1 if "MISSED" in out else 0)
    assert err == ""


def test_pacing_needs_no_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "pacing"]) == 0
    out = capsys.readouterr().out
    assert "delays drawn at random" in out
    assert "All 2 targets met." in out


def test_pacing_reads_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "mine.csv"
    trace.write_text(
        "pub_ms,delay_ms\n" + "".join(f"{at},{3000 if at % 9000 == 0 else 30}\n" for at in range(0, 60_000, 50))
    )
    cli.main(["bench", "pacing", "--trace", str(trace)])
    assert "delays of mine.csv" in capsys.readouterr().out
    assert cli.main(["bench", "pacing", "--trace", str(tmp_path / "none.csv")]) == 1
    assert "none.csv" in capsys.readouterr().err


def test_soak_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["bench", "soak", "--minutes", "0.01", "--clients", "2", "--set", "engine.kind=echo", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["title"] == "outpost bench soak"
    assert report["figures"][0]["value"] == 0


@pytest.mark.parametrize(("value", "code"), [(1.0, 0), (0.5, 1)])
def test_a_missed_target_is_an_exit_code(value: float, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    async def measure(*_: object) -> Report:
        return Report("x", (Figure("ratio", value, at_least=0.92),))

    args = argparse.Namespace(measure=measure, json=False, set=[], model=None, threads=None)
    assert bench.run(args) == code
    assert ("1 of 1 targets missed: ratio." in capsys.readouterr().out) == bool(code)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["engine", "--set", "engine.kind=echo"], "engine.kind must be llama"),
        (["engine", "--set", "engine.slots=4"], "engine.slots must be at least 8"),
        (["engine", "--set", "engine.slots"], "KEY=VALUE"),
        (["contention", "--threads", "1"], "nothing to adapt"),
        (["engine", "--threads", "many"], "threads"),
        (["engine", "--rounds", "0"], "is no whole number from 1"),
        (["soak", "--minutes", "0"], "is no number from 0.01"),
        (["soak", "--clients", "-1"], "is no whole number from 1"),
        ([], "BENCHMARK"),
    ],
)
def test_wrong_use_is_exit_2(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "engine", "--model", "no-such-model"]) == 1
    assert "no-such-model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "promise"),
    [
        ("engine", "0.92"),
        ("background", "6,000 tokens"),
        ("soak", "32 MiB"),
        ("pacing", "20 ms"),
        ("slow-reader", "16 MiB"),
    ],
)
def test_help_says_what_is_measured(name: str, promise: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", name, "--help"]) == 0
    assert promise in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_node_behind(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "node", "bench", "soak", "--minutes", "5", "--set", "engine.kind=echo"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            node = wait_for(lambda: [child for child in psutil.Process(process.pid).children() if serves(child)])[0]
            process.send_signal(number)
            assert process.wait(30) == 128 + signal.SIGTERM
            assert process.stderr is not None
            assert b"Traceback" not in process.stderr.read()
        finally:
            process.kill()
    left = node.is_running()
    if left:
        node.kill()
    assert not left


def serves(process: psutil.Process) -> bool:
    return "serve" in process.cmdline() and bool(process.net_connections("tcp"))


def wait_for(look: Callable[[], list[psutil.Process]]) -> list[psutil.Process]:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError("no node was started")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_what_never_awaits_can_be_ended_too(number: signal.Signals, code: int) -> None:
    command = [sys.executable, "-m", "node", "bench", "admission"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stderr is not None
            while "limit decisions" not in running.stderr.readline():
                assert running.poll() is None
            running.send_signal(number)
            assert running.wait(10) == code
        finally:
            running.kill()
