"""What a profile promises of its model: read with line numbers, bounded, and without endless patterns."""

from __future__ import annotations

import time

import pytest

from node.errors import SettingsError
from node.fleet.golden import MOST_CHARACTERS, Golden, pattern_problem
from node.fleet.profile import find_problems, parse

HEAD = 'name = "x"\ndescription = "y"\n'


def test_a_profile_with_promises() -> None:
    text = (
        HEAD + '[[golden]]\nprompt = "2+2?"\nmatches = "four|4"\n[[golden]]\nprompt = "a"\ntext = "a"\nmax_tokens = 3\n'
    )
    profile = parse(text + "[floor]\nttft_s = 0.5\ntokens_s = 8\n", "x")
    assert [one.max_tokens for one in profile.golden] == [32, 3]
    assert (profile.floor.ttft_s, profile.floor.tokens_s) == (0.5, 8.0)
    assert parse(HEAD, "x").golden == ()


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ('[[golden]]\nprompt = "a"\n', 3, "either"),
        ('[[golden]]\nprompt = "a"\ntext = "b"\nmatches = "b"\n', 3, "either"),
        ('[[golden]]\nprompt = "a"\ntext = "b"\n[[golden]]\nprompt = "c"\nmatches = "("\n', 8, "no regular expression"),
        ('[[golden]]\nprompt = ""\ntext = "b"\n', 4, "length"),
        ('[[golden]]\ntext = "b"\n', 3, "`prompt` is missing"),
        ('[[golden]]\nprompt = "a"\ntext = "b"\nmax_tokens = 1000\n', 6, "<= 256"),
        ('[[golden]]\nprompt = "a"\ntxt = "b"\n', 5, "did you mean text"),
        ("[floor]\nttft_s = -1\n", 4, ">= 0"),
        ("[floor]\nfast = 1\n", 4, "no such key"),
        ('golden = "yes"\n', 3, "array"),
    ],
)
def test_every_mistake_has_its_line(text: str, line: int, word: str) -> None:
    (problem,) = find_problems(HEAD + text)
    assert problem.line == line, problem
    assert word in problem.message


def test_there_are_not_too_many() -> None:
    with pytest.raises(SettingsError, match="<= 16"):
        parse(HEAD + '[[golden]]\nprompt = "a"\ntext = "b"\n' * 17, "x")


@pytest.mark.parametrize(
    ("pattern", "fine"),
    [
        ("four|4", True),
        (r"(?i)paris\b.*france", True),
        (r"[)*+]+ and \)*", True),
        (r"[^]*+]{2}", True),
        (r"[\]*+]+", True),
        ("(?i)four.*?and.*?five|5", True),
        ("(?i)one|two|three|four|five|six|seven|eight|nine.*", True),
        ("a+a?b?a+", False),
        ("}?" * 9, False),
        (r"(a*)(a*)\1\2b", False),
        ("(?P<x>a*)(?P=x)", False),
        (r"\0\\1\d", True),
        ("(?#[)(a|a)*b", False),
        ("(?x)(a|a) *b", False),
        ("(?xi: (a+) # much\n +)b", False),
        (r"\(?x+(?i:y)(?P<x>z)", True),
        ("(a+)+$", False),
        ("(a|aa)*$", False),
        ("(ab){3}", False),
        (".*.*.*x", False),
        ("a?" * 9, False),
        ("(", False),
        ("*", False),
    ],
)
def test_patterns_that_could_run_for_ever_are_refused(pattern: str, fine: bool) -> None:
    assert (pattern_problem(pattern) == "") == fine


@pytest.mark.parametrize("pattern", ["a+a?a+$", "a+" + "a?" * 8 + "$"])
def test_the_worst_patterns_that_are_allowed_end_soon(pattern: str) -> None:
    assert not pattern_problem(pattern)
    began = time.process_time()
    assert not Golden(prompt="x", matches=pattern).accepts("a" * (MOST_CHARACTERS - 1) + "b")
    assert time.process_time() - began < 30


def test_an_answer_is_compared_to_the_letter_or_searched() -> None:
    assert Golden(prompt="x", text="Four.").accepts(" Four.\n")
    assert not Golden(prompt="x", text="Four.").accepts("Four. Or five.")
    assert Golden(prompt="x", matches="(?i)FOUR").accepts("it is four")
    assert not Golden(prompt="x", matches="four").accepts("x" * 2000 + "four"), "nobody reads that far"
