"""What is asked and when: rates, lengths and levels are what they should be, and bad files say what is wrong."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.bench.prompts import QUESTIONS
from node.bench.workload import (
    DEFAULT_MIX,
    LEAST_ANSWER,
    LEAST_PROMPT,
    Arrival,
    Mixture,
    Pace,
    poisson,
    read_mix,
    read_texts,
    read_trace,
    traced,
)
from node.errors import OperatorError

DATA = Path(__file__).parents[1] / "data"
MIXTURE = Mixture(DEFAULT_MIX)


@given(st.floats(0.1, 100), st.floats(1, 1000), st.floats(0.1, 20), st.lists(st.floats(0, 1), max_size=20))
def test_a_pace_gives_times_in_order_and_within_its_seconds(
    rate: float, seconds: float, surge: float, shares: list[float]
) -> None:
    pace = Pace(rate, seconds, surge)
    times = [pace.at(pace.expected * share) for share in sorted(shares)]
    assert times == sorted(times)
    assert all(0 <= at <= seconds * 1.000001 for at in times)


def test_a_surge_is_the_middle_third() -> None:
    pace = Pace(10, 30, surge=5)
    assert pace.expected == pytest.approx(100 + 500 + 100)
    assert [pace.at(count) for count in (0, 100, 350, 600, 700)] == pytest.approx([0, 10, 15, 20, 30])


def test_drawn_arrivals_have_the_rate_and_the_mix() -> None:
    asks = poisson(MIXTURE, Pace(50, 60), seed=1)
    assert len(asks) == pytest.approx(3000, rel=0.06)
    assert [ask.at for ask in asks] == sorted(ask.at for ask in asks)
    shares = Counter(ask.level for ask in asks)
    for level, share in DEFAULT_MIX.items():
        assert shares[level] / len(asks) == pytest.approx(share / 100, abs=0.03)
    gaps = sorted(after.at - before.at for before, after in itertools.pairwise(asks))
    assert gaps[len(gaps) // 2] == pytest.approx(0.0139, rel=0.1), "the median of exponential gaps of 20 ms"
    assert poisson(MIXTURE, Pace(50, 60), seed=1) == asks
    assert poisson(MIXTURE, Pace(50, 60), seed=2) != asks


def test_drawn_lengths_scatter_around_their_medians() -> None:
    asks = poisson(Mixture(DEFAULT_MIX, prompt_tokens=200, answer_tokens=50), Pace(50, 60), seed=1)
    prompts, answers = sorted(ask.prompt_tokens for ask in asks), sorted(ask.answer_tokens for ask in asks)
    assert prompts[len(asks) // 2] == pytest.approx(200, rel=0.1)
    assert answers[len(asks) // 2] == pytest.approx(50, rel=0.1)
    assert prompts[-1] > 600
    assert min(prompts) >= LEAST_PROMPT
    assert min(answers) >= LEAST_ANSWER


def test_prompts_are_about_as_long_as_asked_and_begin_differently() -> None:
    asks = poisson(Mixture(DEFAULT_MIX, texts=("Why is it so?",), prompt_tokens=300), Pace(20, 10), seed=3)
    for ask in asks:
        assert ask.text.endswith("Why is it so?")
        assert abs(len(ask.text.split()) * 1.2 - ask.prompt_tokens) <= 4
    assert len({ask.text[:40] for ask in asks}) == len(asks)


def test_a_short_prompt_is_its_question() -> None:
    short = Mixture({"critical": 1}, texts=[f"{text} {text}" for text in QUESTIONS], prompt_tokens=1)
    ask = poisson(short, Pace(1, 1000), seed=3)[0]
    assert ask.text in short.texts
    assert ask.level == "critical"


def rows(*gaps: float) -> list[Arrival]:
    return [Arrival(at, 1000, 100) for at in itertools.accumulate(gaps, initial=0.0)]


def test_a_trace_keeps_its_rhythm_at_another_rate() -> None:
    trace = rows(*[1.0, 1.0, 4.0] * 100)
    asks = traced(trace, Mixture(DEFAULT_MIX, lengths=0.1), Pace(10, 10), seed=5)
    assert len(asks) == pytest.approx(100, abs=3)
    gaps = Counter(round(after.at - before.at, 3) for before, after in itertools.pairwise(asks))
    assert set(gaps) == {0.05, 0.2}, "its gaps of 1 and 4 of 2 seconds, at ten a second"
    assert {(ask.prompt_tokens, ask.answer_tokens) for ask in asks} == {(100, 10)}
    assert traced(trace, MIXTURE, Pace(10, 10), seed=6)[0].text != asks[0].text


def test_lengths_are_bounded() -> None:
    trace = [Arrival(0, 0, 0), Arrival(1, 10**9, 10**9), Arrival(2, 5, 5)]
    asks = traced(trace, MIXTURE, Pace(3, 1), seed=1)
    assert all(LEAST_PROMPT <= ask.prompt_tokens <= 2048 for ask in asks)
    assert all(LEAST_ANSWER <= ask.answer_tokens <= 2048 for ask in asks)


def test_the_trace_that_comes_with_the_tests() -> None:
    trace = read_trace(DATA / "azure_conv.csv")
    assert len(trace) == 1200
    assert (trace[0].at, trace[0].prompt_tokens, trace[0].answer_tokens) == (0, 374, 44)
    assert 200 < trace[-1].at < 260
    asks = traced(trace, Mixture(DEFAULT_MIX, read_texts(DATA / "clinc150.txt"), 0.2), Pace(5, 20), seed=1)
    assert 80 <= len(asks) <= 130
    assert asks[-1].at < 20


@pytest.mark.parametrize(
    "text",
    [
        "",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,2\n",
        "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,1\n2023-11-16 18:15:47,1\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,2\nnoon,1,2\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,one,2\n2023-11-16 18:15:47,1,2\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,2\n2023-11-16 18:15:45,1,2\n",
    ],
)
def test_a_trace_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(OperatorError, match=r"t\.csv"):
        read_trace(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("name", "text", "questions"),
    [
        ("q.txt", "one\n\n two \n", ["one", "two"]),
        ("q.tsv", "split\tutterance\tintent\na\tone two\tx\n", ["one two"]),
        ("q.jsonl", '{"messages": [{"role": "user", "content": "hi"}]}\n', ["hi"]),
    ],
)
def test_questions_of_three_kinds(tmp_path: Path, name: str, text: str, questions: list[str]) -> None:
    (tmp_path / name).write_text(text)
    assert read_texts(tmp_path / name) == questions


@pytest.mark.parametrize(
    ("name", "text"), [("q.txt", " \n"), ("q.tsv", "a\tb\n1\t2\n"), ("q.jsonl", "{}\n"), ("q.jsonl", "no\n")]
)
def test_files_without_questions(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(OperatorError, match="questions"):
        read_texts(tmp_path / name)
    with pytest.raises(OperatorError, match="Cannot read"):
        read_texts(tmp_path / "none")


def test_a_mix_in_words() -> None:
    assert read_mix("critical=1, background=3") == {"critical": 1, "interactive": 0, "standard": 0, "background": 3}
    for wrong in (
        "",
        "urgent=1",
        "critical",
        "critical=x",
        "critical=-1",
        "critical=nan",
        "critical=0",
        "critical=inf",
    ):
        with pytest.raises(ValueError):  # noqa: PT011  # argparse says the rest
            read_mix(wrong)
