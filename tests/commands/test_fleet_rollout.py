"""Choosing, widening, stopping and watching rollouts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from node.cli import main
from node.fleet.directive import Rollout
from node.fleet.publish import Publication, today


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OUTPOST_PASSPHRASE", raising=False)
    assert main(["fleet", "init"]) == 0
    write(tmp_path, 3)
    assert main(["fleet", "add", "kiosk.toml"]) == 0
    assert main(["fleet", "rollout", "spring", "--profile", "kiosk", "--percent", "10"]) == 0
    return tmp_path


def write(folder: Path, slots: int) -> None:
    (folder / "kiosk.toml").write_text(
        f'name = "kiosk"\ndescription = "A kiosk"\n[settings.engine]\nkind = "echo"\nslots = {slots}\n'
    )


def rollout(desk: Path) -> Rollout:
    (found,) = Publication(desk / "repository", today()).rollouts()
    return found


def test_widening_keeps_the_revision_and_the_rest(desk: Path) -> None:
    words = ["--ring", "shops", "--ring", "test", "--window", "01:00-05:30", "--start", "2027-01-31T03:00+00:00"]
    more = ["--min-executed", "5", "--abort-percent", "20", "--timeout-s", "600", "--probation-s", "60"]
    assert main(["fleet", "rollout", "spring", *words, *more, "--no-rollback"]) == 0
    assert main(["fleet", "rollout", "spring", "--percent", "50"]) == 0
    found = rollout(desk)
    assert (found.revision, found.percent, found.rings, found.window) == (1, 50.0, ("shops", "test"), ((60, 330),))
    assert (found.min_executed, found.abort_percent, found.timeout_s, found.probation_s) == (5, 20.0, 600.0, 60.0)
    assert (found.start, found.rollback) == (1801364400.0, False)


def test_news_and_retries_are_a_new_revision(desk: Path) -> None:
    write(desk, 4)
    assert main(["fleet", "add", "kiosk.toml"]) == 0
    assert main(["fleet", "rollout", "spring", "--profile", "./kiosk.toml"]) == 0
    assert rollout(desk).revision == 2
    assert main(["fleet", "rollout", "spring", "--retry"]) == 0
    assert rollout(desk).revision == 3
    assert main(["fleet", "abort", "spring"]) == 0
    assert rollout(desk).stopped
    assert main(["fleet", "rollout", "spring"]) == 0
    assert (rollout(desk).revision, rollout(desk).stopped) == (4, False)


def test_what_is_wrong_is_told(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(desk, 5)
    assert main(["fleet", "add", "kiosk.toml"]) == 0
    cases = {
        ("rollout", "new"): "--profile says what it brings",
        ("rollout", "new", "--profile", "none"): "No profile none is signed",
        ("rollout", "new", "--profile", "kiosk"): "2 profiles kiosk are signed",
        ("rollout", "Bad Name", "--profile", "kiosk.toml"): "That is no rollout",
        ("rollout", "spring", "--percent", "101"): "That is no rollout",
        ("rollout", "spring", "--window", "1-2"): "no window",
        ("rollout", "spring", "--window", "02:00-02:00"): "no minute",
        ("rollout", "spring", "--window", "23:00-24:30"): "no window",
        ("rollout", "spring", "--start", "tomorrow"): "no time",
        ("rollout", "spring", "--start", "2027-01-01T00:00"): "which zone",
        ("abort", "none"): "no rollout none",
        ("status",): "Where do the nodes report to?",
    }
    for words, message in cases.items():
        assert main(["fleet", *words]) == 1, words
        assert message in capsys.readouterr().err


def test_a_dry_run_changes_nothing(desk: Path) -> None:
    assert main(["fleet", "rollout", "spring", "--percent", "99", "--dry-run"]) == 0
    assert main(["fleet", "abort", "spring", "--dry-run"]) == 0
    assert (rollout(desk).percent, rollout(desk).stopped) == (10.0, False)


def reported(desk: Path, outcomes: str) -> Path:
    words = {"c": "committed", "r": "rolled back"}
    lines = [
        json.dumps({"node": f"n{n}", "rollout": "spring", "revision": 1, "outcome": words[o], "reason": "too slow"})
        for n, o in enumerate(outcomes)
    ]
    (desk / "reports").write_text("\n".join([*lines, "not a report"]))
    return desk / "reports"


def test_status(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(reported(desk, "ccr"))
    capsys.readouterr()
    assert main(["fleet", "status", "--reports", path]) == 0
    said = capsys.readouterr().out
    for words in ("spring, revision 1: kiosk for 10 %", "2 committed, 1 rolled back", "33 % bad of 3", "1 x too slow"):
        assert words in said
    assert main(["fleet", "status", "--json", "--reports", path]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["ended"], found["bad"], found["must_stop"]) == (3, 1, False)


def test_watch_stops_at_the_threshold_and_only_there(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("root-1", "root-2", "root-3", "profiles"):
        (desk / "keys" / f"{name}.pem").unlink()  # the online key is enough
    assert main(["fleet", "watch", "--every", "0", "--reports", str(reported(desk, "ccr"))]) == 0
    assert not rollout(desk).stopped
    assert main(["fleet", "watch", "--every", "0", "--reports", str(reported(desk, "crr"))]) == 0
    assert "spring is stopped: too many nodes" in capsys.readouterr().out
    assert rollout(desk).stopped
    before = Publication(desk / "repository", today()).version("rollouts")
    assert main(["fleet", "watch", "--every", "0", "--reports", str(reported(desk, "crr"))]) == 0
    assert Publication(desk / "repository", today()).version("rollouts") == before
    assert main(["fleet", "watch", "--every", "0", "--reports", str(desk / "none")]) == 1
