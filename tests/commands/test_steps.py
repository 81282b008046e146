"""Progress of a benchmark, as lines."""

from __future__ import annotations

import pytest

from node.commands.steps import Steps


def test_steps_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    steps = Steps("measurements", 12)
    steps.next("bare loop")
    steps.next("node")
    assert capsys.readouterr().err == "[ 1 of 12 measurements]  bare loop\n[ 2 of 12 measurements]  node\n"


def test_seconds_are_told_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    steps = Steps("s", 30)
    for second in range(35):
        steps.reach(second + 0.2, "fine")
    assert capsys.readouterr().err == "[10 of 30 s]  fine\n[20 of 30 s]  fine\n"


def test_notes_come_every_ten_seconds_of_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    steps = Steps("turns", 2)
    for turn in ("first", "second"):
        steps.next(turn)
        for second in range(15):
            steps.note(second + 0.5, f"{second} sent")
    assert capsys.readouterr().err == (
        "[1 of 2 turns]  first\n[1 of 2 turns]    10 s: 10 sent\n"
        "[2 of 2 turns]  second\n[2 of 2 turns]    10 s: 10 sent\n"
    )
