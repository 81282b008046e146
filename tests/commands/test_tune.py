"""`outpost tune`: what people and programs read, and the whole command on a tiny model."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node import cli
from node.commands import tune
from node.layers import load
from node.settings import Engine
from node.tuning import job as jobs
from node.tuning import reading, tuned
from node.tuning.gate import Quality
from node.tuning.job import Job, Pace
from node.tuning.tune import Report, Row, Space
from node.tuning.variants import AS_SHIPPED, Speed, Variant
from tests.support import tiny_model

BASE = Engine()
_FEW = ("--slots", "1", "--threads", "1", "--quick")
SHIPPED = Row(Variant(AS_SHIPPED, BASE), "shipped", ratio=Speed(1, 1, 1), bytes=98_362_432)
EIGHT = Row(Variant("Q8_0", BASE), "best", "", Speed(1.22, 2.4, 1.43), Quality(0.0055, 0.954, 2346), 144_811_072)
FOUR = Row(
    Variant("Q4_0", BASE),
    "refused",
    "KL 0.2819 is over 0.02",
    Speed(1.9, 3, 2),
    Quality(0.2819, 0.7306, 2346),
    91_726_912,
)
LATE = Row(Variant("Q6_K", BASE), "skipped", "no time was left")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model, short texts and short measurements."""
    (tmp_path / "texts.txt").write_text("one text of some words\n----\nand another text, which is longer")
    monkeypatch.setattr(reading, "_TEXTS", tmp_path / "texts.txt")
    monkeypatch.setattr(tune, "FULL", Pace(seconds=0.001, plans=((1, 1),), most_s=60))
    return tiny_model.write(tmp_path / "tiny.gguf")


def job(tmp_path: Path) -> Job:
    space = Space(base=BASE, shipped="Q4_1", parameters=134_515_008, bytes=98_362_432, room=None, cores=2, threads=2)
    return Job(load(environment={}), frozenset(), tmp_path / "m.gguf", space)


def report() -> Report:
    return Report([SHIPPED, EIGHT, FOUR, LATE], EIGHT, "", Speed(112, 287, 191), Speed(137, 692, 273), 5, 183.0)


def test_the_table_has_a_row_a_variant_and_its_reason(tmp_path: Path) -> None:
    lines = list(tune.table(job(tmp_path), report()))
    assert lines[0] == f"smollm2-135m-instruct: Q4_1, 98.4 MB, as shipped at {tmp_path / 'm.gguf'}"
    assert lines[1] == "3 variants in 3 min 3 s; ratios over the file as shipped"
    assert lines[3:] == [
        "VARIANT     DECODE  PREFILL  STREAMS  SCORE      KL  AGREE      SIZE  VERDICT",
        "as shipped  1.00 x   1.00 x   1.00 x   1.00                  98.4 MB  shipped",
        "Q8_0        1.22 x   2.40 x   1.43 x   1.57  0.0055  0.954  144.8 MB  best",
        "Q4_0        1.90 x   3.00 x   2.00 x   2.21  0.2819  0.731   91.7 MB  refused: KL 0.2819 is over 0.02",
        "Q6_K                                                                  skipped: no time was left",
    ]


def test_the_verdict_names_the_figures_and_what_to_do(tmp_path: Path) -> None:
    lines = list(tune.verdict(job(tmp_path), report(), kept=False))
    assert lines[0] == "Q8_0 wins, in the last run against the file as shipped (medians of 5 rounds in turns):"
    assert lines[2] == "  prefill    287.0 ->   692.0 tokens/s (2.40 x)"
    assert "`outpost tune --apply`" in lines[-1]
    assert "--clear" in list(tune.verdict(job(tmp_path), report(), kept=True))[-1]


def test_the_verdict_is_honest_when_nothing_wins(tmp_path: Path) -> None:
    nothing = Report([SHIPPED, FOUR], None, "No variant was faster within the quality limits.")
    assert list(tune.verdict(job(tmp_path), nothing, kept=True)) == [
        "No variant was faster within the quality limits. The file as shipped is served."
    ]


def test_programs_get_every_figure(tmp_path: Path) -> None:
    found = json.loads(json.dumps(tune.as_json(job(tmp_path), report(), kept=True)))
    assert (found["winner"], found["kept"]) == ("Q8_0", True)
    assert found["gains"] == {"decode": 1.22, "prefill": 2.4, "streams": 1.43}
    assert found["tokens_per_s"]["shipped"] == {"decode": 112, "prefill": 287, "streams": 191}
    assert [one["verdict"] for one in found["variants"]] == ["shipped", "best", "refused", "skipped"]
    assert found["variants"][2]["kl"] == 0.2819
    assert found["variants"][3]["ratio"] is None
    assert found["limits"] == {"max_kl": 0.02, "min_agreement": 0.92}


def outpost(*words: str) -> int:
    return cli.main(["tune", *words])


def test_the_whole_command(home: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--model", str(model), "--slots", "2", "--threads", "1", "--set", "tune.min_gain=10")
    assert outpost(*flags) == 0
    said = capsys.readouterr()
    assert "as shipped" in said.out
    assert re.search(r"^Q8_0 .* (slower|refused|best|better)", said.out, re.MULTILINE)
    assert "threads 2" not in said.out, "what a flag says is not varied"
    assert tuned.read() is None
    assert outpost("--apply", "--json", *flags) == 0
    assert json.loads(capsys.readouterr().out)["kept"] is True
    assert tuned.of(str(model)) is not None
    assert outpost("--clear") == 0
    assert tuned.read() is None
    assert "free again" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--engine", "echo"), 2, "nothing to tune"),
        (("--model", "/none.gguf"), 1, "There is no file"),
        (("--set", "tune.max_kl=-1"), 2, "between 0 and 10"),
        (("--apply", "--clear"), 2, "not allowed with"),
    ],
)
def test_what_is_wrong_is_said(
    home: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, said: str
) -> None:
    assert outpost(*words) == code
    assert said in capsys.readouterr().err
    assert list(home.iterdir()) == []


def test_a_data_directory_that_cannot_be_written_is_an_error(
    home: Path, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "file").write_text("")
    monkeypatch.setenv("OUTPOST_HOME", str(home / "file" / "below"))
    assert outpost("--model", str(model)) == 1
    assert "Not a directory" in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert outpost("--help") == 0
    said = capsys.readouterr().out
    for word in ("tune.max_kl", "tuned.toml", "--apply --quick", "--clear", "STREAMS"):
        assert word in said
    assert "--background" not in said


@contextlib.contextmanager
def child(home: Path, model: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run in a process of its own that has begun to make something."""
    # Where this suite runs in the background its children would be deaf to Ctrl-C.
    hearing = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    program = hearing + "import sys; from node import cli; sys.exit(cli.main())"
    command = [sys.executable, "-c", program, "tune", "--model", str(model), *words, *_FEW]
    own = {**os.environ, "OUTPOST_HOME": str(home)}
    with (home.parent / "said").open("wb") as said:
        process = subprocess.Popen(command, env=own, stdin=subprocess.PIPE, stdout=said, stderr=said)
    with process:
        try:
            wait_for(lambda: at_work(home))
            yield process
        finally:
            process.kill()


def at_work(home: Path) -> bool:
    return any((home / "tuning").glob("*.gguf")) if (home / "tuning").exists() else False


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never came")


def test_in_the_background_it_ends_well_while_its_node_lives(home: Path, model: Path) -> None:
    with child(home, model, "--apply", "--background", "--json", "--set", "engine.batch=64") as process:
        assert process.wait(100) == 0
    said = (home.parent / "said").read_text()
    assert json.loads(said[said.index("{\n") :])["kept"] is True
    assert tuned.of(str(model)) is not None


def test_in_the_background_it_ends_with_its_node(home: Path, model: Path) -> None:
    with child(home, model, "--apply", "--background") as process:
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 1


def test_a_run_that_is_killed_leaves_nothing_that_counts_and_the_next_one_clears(home: Path, model: Path) -> None:
    with child(home, model, "--apply") as process:
        process.kill()
    assert tuned.read() is None
    assert not list(tuned.variants())
    assert outpost("--clear") == 0
    assert list(home.iterdir()) == []


def test_ctrl_c_is_quiet_and_clears(home: Path, model: Path) -> None:
    with child(home, model, "--apply") as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert list(home.iterdir()) == []
    assert "Traceback" not in (home.parent / "said").read_text()


def test_quick_is_what_it_says(home: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paces: list[Pace] = []

    def run(job: Job, pace: Pace, tell: object, *, keep: bool) -> Report:
        paces.append(pace)
        return Report([SHIPPED], None, "nothing")

    monkeypatch.setattr(jobs, "run", run)
    assert outpost("--model", str(model), "--quick") == 0
    assert paces == [jobs.QUICK]
