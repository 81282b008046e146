"""Numbers on the command line."""

from __future__ import annotations

import argparse
import math

import pytest

from node import cli
from node.commands.numbers import number, several, whole


def test_what_is_in_range_is_taken() -> None:
    assert [whole(1, 9)(text) for text in ("1", "9", " 4 ")] == [1, 9, 4]
    assert [number(0.1, 3600)(text) for text in ("0.1", "3600", "1e3")] == [0.1, 3600, 1000]
    assert number(-math.inf)("-2.5") == -2.5
    assert several(whole(1))("1,20") == (1, 20)


@pytest.mark.parametrize("text", ["0", "10", "-1", "1.5", "x", "", "9" * 5000, "nan"])
def test_what_is_no_such_whole_number_is_told(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no whole number from 1 to 9"):
        whole(1, 9)(text)


@pytest.mark.parametrize("text", ["0", "3601", "nan", "inf", "-inf", "x", ""])
def test_what_is_no_such_number_is_told(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"is no number from 0\.1 to 3,600"):
        number(0.1, 3600)(text)


@pytest.mark.parametrize("text", ["nan", "inf", "warm"])
def test_a_number_without_bounds_is_finite(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=rf"^'{text}' is no number$"):
        number(-math.inf)(text)


@pytest.mark.parametrize(
    "line",
    [
        "ask --temperature x hi",
        "status --watch 0",
        "prewarm why --top 0",
        "bench engine --rounds 0",
        "bench soak --minutes x",
    ],
)
def test_no_verb_names_its_own_functions(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(line.split()) == 2
    told = capsys.readouterr().err
    assert "is no " in told
    assert "invalid _" not in told
