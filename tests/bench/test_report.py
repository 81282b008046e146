from __future__ import annotations

import json
import math

import pytest

from node.bench.report import Figure, Report, as_json, table


@pytest.mark.parametrize(
    ("figure", "met", "target"),
    [
        (Figure("a", 1), None, ""),
        (Figure("a", 0.92, at_least=0.92), True, ">= 0.920"),
        (Figure("a", 0.919, at_least=0.92), False, ">= 0.920"),
        (Figure("a", 80, "ms", at_most=80), True, "<= 80 ms"),
        (Figure("a", 80.1, "ms", at_most=80), False, "<= 80 ms"),
        (Figure("a", math.nan, "ms", at_most=80), False, "<= 80 ms"),
        (Figure("a", math.inf, at_least=1), True, ">= 1.000"),
    ],
)
def test_targets(figure: Figure, met: bool | None, target: str) -> None:
    assert figure.met is met
    assert figure.target == target


def test_the_table_says_what_was_missed() -> None:
    report = Report(
        "outpost bench x",
        (
            Figure("8 streams", 0.951, at_least=0.92, detail="181.2 / 190.5 tokens/s"),
            Figure("gap", 81.234, "ms", at_most=80),
            Figure("tokens", 12345.6, "tokens"),
        ),
        ("2 threads",),
    )
    assert table(report).splitlines() == [
        "outpost bench x",
        "  2 threads",
        "",
        "FIGURE             VALUE    TARGET",
        "8 streams          0.951  >= 0.920  met     181.2 / 190.5 tokens/s",
        "gap              81.2 ms  <= 80 ms  MISSED",
        "tokens     12,346 tokens",
        "",
        "1 of 2 targets missed: gap.",
    ]


def test_all_met() -> None:
    report = Report("x", (Figure("a", 1, at_least=1), Figure("b", 2)))
    assert report.missed == ()
    assert report.verdict == "All 1 targets met."


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_no_number_can_be_shown(value: float) -> None:
    report = Report("x", (Figure("a", value, "ms", at_most=1), Figure("b", value, at_most=1)))
    assert "MISSED" in table(report)


def test_json_has_everything() -> None:
    report = Report("x", (Figure("a", 1.23456, "ms", at_most=1, detail="why"), Figure("b", math.nan)), ("2 threads",))
    said = json.loads(json.dumps(as_json(report), allow_nan=False))
    assert said["met"] is False
    assert said["facts"] == ["2 threads"]
    assert said["figures"][0] == {
        **{"name": "a", "value": 1.2346, "unit": "ms", "at_least": None, "at_most": 1, "met": False, "detail": "why"}
    }
    assert said["figures"][1]["value"] is None
