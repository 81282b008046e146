"""`outpost bench drafts` on the command line."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from node.bench.drafts import QUICK, Plan
from node.cli import main
from node.commands import bench_drafts
from node.errors import SettingsError


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--set", "engine.kind=echo"], "engine.kind must be llama"),
        (["--questions", "0"], "--questions must be"),
        (["--texts", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_what_makes_no_sense_is_refused(
    words: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "drafts", *words]) != 0
    assert complaint in capsys.readouterr().err


def test_how_much_is_measured() -> None:
    def plan(questions: int | None, *, quick: bool, fresh: int | None = None) -> Plan:
        return bench_drafts.plan_of(argparse.Namespace(questions=questions, quick=quick, fresh=fresh))

    assert plan(None, quick=False) == Plan()
    assert plan(None, quick=True) == QUICK
    assert plan(7, quick=True) == Plan(7, QUICK.tokens, QUICK.fresh, QUICK.fresh_tokens)
    assert plan(None, quick=False, fresh=60) == Plan(fresh=60)
    with pytest.raises(SettingsError, match="--questions"):
        plan(20_000, quick=False)
    with pytest.raises(SettingsError, match="--fresh"):
        plan(None, quick=False, fresh=0)


def test_questions_come_from_all_over_the_file() -> None:
    texts = [str(number) for number in range(600)]
    assert bench_drafts._spread(texts, 6) == ["0", "100", "200", "300", "400", "500"]
    assert bench_drafts._spread(texts[:4], 6) == texts[:4]


@pytest.mark.model
def test_a_small_run_of_the_real_thing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("what time is it\n")
    words = "--quick --questions 1 --fresh 1".split()
    main(["bench", "drafts", *words, "--texts", str(texts), "--form", "as-served", "--json"])
    report = json.loads(capsys.readouterr().out)
    figures = {figure["name"]: figure for figure in report["figures"]}
    assert figures["greedy answers that are the same"]["value"] > 0.5
    assert any("tokens were guessed and checked" in fact for fact in report["facts"])
