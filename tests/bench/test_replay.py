"""Reading the data, placing it in a trace's rhythm, and what an unlimited cache would have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from node.bench import replay
from node.bench.replay import Step, Tokenizer, read, sequence, typical, unlimited
from node.bench.workload import Arrival, read_trace
from node.errors import OperatorError
from node.settings import Engine

DATA = Path(__file__).parents[1] / "data"
ROWS = [Arrival(0.0, 1, 1), Arrival(1.0, 1, 1), Arrival(5.0, 1, 1)]
PROMPTS = [(1, 2, 3), (1, 2, 4), (9,)]


def test_the_extract_is_read_whole() -> None:
    asked, lists = read(DATA / "bfcl_live")
    assert len(asked) == 150
    assert {one.tools for one in asked} == set(lists)
    assert all(one.messages for one in asked)


def test_the_rhythm_is_the_traces_and_the_pace_is_ours() -> None:
    steps = sequence(PROMPTS, ROWS, gap_s=10.0)
    assert [step.at for step in steps] == [0.0, 4.0, 20.0]
    assert [step.ids for step in steps] == PROMPTS


def test_shuffling_is_the_same_each_time_and_loses_nothing() -> None:
    prompts = [(number,) for number in range(50)]
    rows = [Arrival(float(number), 1, 1) for number in range(50)]
    first, again = sequence(prompts, rows, 1.0, shuffle=3), sequence(prompts, rows, 1.0, shuffle=3)
    assert first == again
    assert [step.ids for step in first] != prompts
    assert sorted(step.ids for step in first) == prompts


def test_the_shorter_of_prompts_and_trace_ends_it() -> None:
    assert len(sequence(PROMPTS, ROWS[:2], 1.0)) == 2
    assert len(sequence(PROMPTS[:1], ROWS, 1.0)) == 1


def test_an_unlimited_cache_has_the_longest_beginning_of_any_before_but_never_all() -> None:
    steps = [Step(0.0, (1, 2, 3)), Step(1.0, (1, 2, 4)), Step(2.0, (1, 2, 3)), Step(3.0, (5,))]
    assert unlimited(steps) == [0, 2, 2, 0]


def test_a_piece_is_taken_that_is_like_the_whole() -> None:
    again, new = (1, 2, 3, 4), iter(range(100, 200))
    rich = [Step(0.0, again)] * 10
    poor = [Step(0.0, (next(new),) * 4) for _ in range(10)]
    mixed = [Step(0.0, again), Step(0.0, (next(new),) * 4)] * 5
    steps = [*rich, *poor, *mixed]
    start = typical(steps, 0, 6)
    part = unlimited(steps)[start : start + 6]
    assert abs(sum(part) / 24 - sum(unlimited(steps)) / 120) < 0.1
    assert typical(steps, 8, 100) == 8, "a replay that is shorter is taken whole"


@pytest.mark.parametrize(
    ("prompts", "lists", "complaint"),
    [
        ("{}", "{}", "as expected"),
        ("not json", "{}", "as expected"),
        (json.dumps({"id": "a", "tools": "x", "messages": []}), "{}", "no list x"),
    ],
)
def test_what_is_no_data_set_is_said(tmp_path: Path, prompts: str, lists: str, complaint: str) -> None:
    (tmp_path / "prompts.jsonl").write_text(prompts)
    (tmp_path / "toollists.json").write_text(lists)
    with pytest.raises(OperatorError, match=complaint):
        read(tmp_path)


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="Cannot read"):
        read(tmp_path / "nothing")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "MOST_FILE_BYTES", 10)
    (tmp_path / "prompts.jsonl").write_text("x" * 11)
    with pytest.raises(OperatorError, match="larger"):
        read(tmp_path)


def test_the_extract_and_the_trace_fit_together() -> None:
    assert len(read_trace(DATA / "azure_conv.csv")) >= 150


@pytest.mark.model
def test_prompts_with_the_same_tools_begin_alike(weights: Path) -> None:
    asked, lists = read(DATA / "bfcl_live")
    alike = [one for one in asked if one.tools == asked[1].tools][:2]
    with Tokenizer(Engine(), weights) as tokenizer:
        first, second = tokenizer.prompts(alike, lists)
        assert tokenizer.token_bytes() > 0
    assert unlimited([Step(0.0, first), Step(1.0, second)])[1] > 100
