"""What may be tried, and how the tried are compared."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.settings import Engine
from node.tuning import quantize
from node.tuning.variants import (
    AS_SHIPPED,
    FORMS,
    ONNX,
    WEIGHTS,
    Speed,
    Variant,
    changed,
    forms,
    median,
    most_bytes,
    ratio,
    steps,
)

RATE = st.floats(0.01, 1e5)
SPEEDS = st.builds(Speed, RATE, RATE, RATE)


def test_a_variant_is_named_by_what_is_different() -> None:
    base = Engine()
    assert Variant(AS_SHIPPED, base).label(base) == "as shipped"
    assert Variant("Q8_0", base).label(base) == "Q8_0"
    one = changed(changed(Variant("Q4_0", base), "threads", 3), "kv_type", "q8_0")
    assert one.label(base) == "Q4_0, kv_type q8_0, threads 3"
    assert one.differences(base) == {"kv_type": "q8_0", "threads": 3}
    assert base == Engine(), "the base is a value"


def test_the_weights_of_the_score_are_a_mean() -> None:
    assert sum(WEIGHTS.values()) == pytest.approx(1)
    assert set(WEIGHTS) == {"decode", "prefill", "streams"}


@given(SPEEDS, SPEEDS)
def test_ratios_multiply(one: Speed, other: Speed) -> None:
    there, back = one.over(other), other.over(one)
    assert there.score * back.score == pytest.approx(1)
    assert other.times(there).score == pytest.approx(one.score)
    assert one.over(one).score == pytest.approx(1)
    assert min(there.decode, there.prefill, there.streams) == there.least == getattr(there, there.worst)


@given(SPEEDS, st.floats(0.1, 10))
def test_what_is_n_times_as_fast_has_the_score_n(speed: Speed, n: float) -> None:
    assert speed.times(Speed(n, n, n)).over(speed).score == pytest.approx(n)


def test_twice_here_and_half_there_is_no_gain_but_for_the_weights() -> None:
    assert Speed(1, 2, 0.5).score == pytest.approx(1)
    assert Speed(2, 0.5, 1).score == pytest.approx(2 ** (WEIGHTS["decode"] - WEIGHTS["prefill"]))


@given(st.lists(st.tuples(SPEEDS, st.floats(0.1, 10)), min_size=1, max_size=9))
def test_what_slows_both_sides_of_a_round_cancels(rounds: list[tuple[Speed, float]]) -> None:
    gain = Speed(1.5, 2, 3)
    quiet = [speed for speed, _ in rounds]
    busy = [speed.times(Speed(load, load, load)) for speed, load in rounds]
    for reference in (quiet, busy):
        assert ratio(reference, [speed.times(gain) for speed in reference]).score == pytest.approx(gain.score)


def test_one_spoilt_round_of_three_does_not_show() -> None:
    assert median([Speed(1, 1, 1), Speed(1.1, 1, 1), Speed(0.01, 9, 1)]) == Speed(1, 1, 1)


def test_every_form_can_be_made_and_the_likeliest_comes_first() -> None:
    assert set(FORMS) == set(quantize.TYPES)
    assert list(FORMS)[:2] == ["Q8_0", "Q4_0"]
    assert "Q4_1" not in forms("Q4_1", 1000, None), "the form that it has already"
    assert not any(forms("Q4_1", 1000, None).values())


def test_what_does_not_fit_the_memory_is_not_tried_and_says_so() -> None:
    parameters = 1_000_000_000
    room = most_bytes("Q4_K_M", parameters)
    found = forms("F16", parameters, room)
    assert found["Q4_K_M"] == ""
    assert found["Q4_0"] == ""
    assert found["Q8_0"] == f"needs {most_bytes('Q8_0', parameters) / 1e6:,.0f} MB, {room / 1e6:,.0f} MB are free"
    assert all(found[form] for form in FORMS if FORMS[form] > FORMS["Q4_K_M"] and form in found)
    assert all(forms("F16", parameters, -5).values())


@pytest.mark.parametrize(
    ("engine", "cores", "threads", "wanted"),
    [
        (Engine(), 2, 2, {"threads": [1], "flash_attention": ["off"], "kv_type": ["q8_0"], "ubatch": [128, 256]}),
        (Engine(), 8, 4, {"threads": [8, 3, 2]}),
        (Engine(threads=1), 1, 1, {"threads": None}),
        (Engine(kv_type="q8_0"), 2, 2, {"flash_attention": None, "kv_type": None}),
        (Engine(flash_attention="off"), 2, 2, {"flash_attention": None, "kv_type": None}),
        (Engine(ubatch=128), 2, 2, {"ubatch": None}),
        (Engine(batch=200), 2, 2, {"ubatch": [128]}),
        (Engine(batch=2048), 2, 2, {"batch": None}),
    ],
)
def test_the_settings_to_try_follow_from_engine_and_machine(
    engine: Engine, cores: int, threads: int, wanted: dict[str, list[int | str] | None]
) -> None:
    found = dict(steps(engine, cores, threads, Speed(100, 300, 200), frozenset()))
    for key, values in wanted.items():
        assert found.get(key) == values, key
    assert "batch" not in found, "300 tokens/s never fill a larger batch"


def test_a_large_batch_is_for_those_who_can_fill_it() -> None:
    assert ("batch", [2048]) in steps(Engine(), 2, 2, Speed(100, 5000, 200), frozenset())


def test_the_other_engine_is_called_by_its_form_and_has_only_threads_to_try() -> None:
    other = changed(Variant(ONNX, Engine()), "kind", "onnx")
    assert other.label(Engine()) == "ONNX"
    assert changed(other, "threads", 1).label(Engine()) == "ONNX, threads 1"
    assert other.differences(Engine()) == {"kind": "onnx"}
    assert steps(other.engine, 2, 2, Speed(1, 9000, 1), frozenset()) == [("threads", [1])]
    assert steps(other.engine, 2, 2, Speed(1, 9000, 1), frozenset({"threads"})) == []


def test_what_the_operator_has_set_stays() -> None:
    everything = {key for key, _ in steps(Engine(), 8, 4, Speed(100, 5000, 200), frozenset())}
    assert everything == {"threads", "flash_attention", "kv_type", "ubatch", "batch"}
    left = {key for key, _ in steps(Engine(), 8, 4, Speed(100, 5000, 200), frozenset({"threads", "kv_type"}))}
    assert left == everything - {"threads", "kv_type"}


@given(st.integers(0, 64), st.integers(1, 64), st.integers(1, 64))
def test_no_step_is_to_what_it_has(own: int, cores: int, threads: int) -> None:
    for key, values in steps(Engine(threads=own), cores, threads, Speed(1, 1, 1), frozenset()):
        assert values
        assert len(set(values)) == len(values)
        assert getattr(Engine(threads=own), key) not in values
        if key == "threads":
            assert all(isinstance(value, int) and 0 < value != (own or threads) for value in values)
            assert max(int(value) for value in values) <= max(cores, own or threads)


def test_scores_are_finite_for_anything_that_was_measured() -> None:
    assert math.isfinite(Speed(1e-9, 1e9, 1e-9).score)
