"""The diagnosis on a terminal."""

from __future__ import annotations

import pytest

from node.commands.doctor_table import Check, table, verdict


def test_the_table() -> None:
    checks = [Check("one", "ok", "fine"), Check("longer", "fail", "bad", "first\nthen")]
    assert table(checks, colours=False) == [
        "ok    one     fine",
        "fail  longer  bad",
        "              -> first",
        "              -> then",
    ]
    assert table(checks, colours=True)[1].startswith("\x1b[31mfail\x1b[0m  longer")


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (["ok", "ok"], "A node can run here."),
        (["ok", "warn", "warn"], "A node can run here; 2 could be better."),
        (["warn", "fail"], "1 to mend before a node can run."),
    ],
)
def test_the_verdict(states: list[str], words: str) -> None:
    assert verdict([Check("x", state, "") for state in states]) == words  # type: ignore[arg-type]
