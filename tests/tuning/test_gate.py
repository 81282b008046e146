"""The quality gate: what it measures, and that it can tell good from bad."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from node.errors import ModelFileError
from node.settings import Tune
from node.tuning.gate import Gate, Quality, divergence
from node.tuning.quantize import requantize
from node.tuning.reading import Distribution, log_softmax
from tests.support import tiny_model
from tests.tuning.conftest import SMALL

TEXTS = ("The old house of the one and the other on the water. " * 3, "Another text, about nothing at all.")
MOST = 4 << 20

logits = st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=50)


def vector(values: list[float]) -> Distribution:
    return np.array(values, np.float32)


@given(st.data(), st.integers(2, 20))
def test_divergence_is_never_negative_and_nothing_from_itself(data: st.DataObject, size: int) -> None:
    sized = st.lists(st.floats(-10, 10, width=32), min_size=size, max_size=size)
    one, other = (log_softmax(vector(data.draw(sized))) for _ in range(2))
    assert divergence(one, other) >= -1e-5
    assert divergence(one, one) == 0


def test_divergence_is_the_textbook_s() -> None:
    own, other = np.log(vector([0.5, 0.5])), np.log(vector([0.25, 0.75]))
    assert divergence(own, other) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), rel=1e-5)


@pytest.mark.parametrize(
    ("quality", "said"),
    [
        (Quality(0.005, 0.95, 100), ""),
        (Quality(0.02, 0.92, 100), ""),
        (Quality(0.021, 0.95, 100), "KL 0.0210 is over 0.02"),
        (Quality(0.005, 0.91, 100), "agreement 0.910 is under 0.92"),
        (Quality(float("nan"), 0.95, 100), "KL nan is over 0.02"),
        (Quality(0.001, float("nan"), 100), "agreement nan is under 0.92"),
        (Quality(float("inf"), 1, 100), "KL inf is over 0.02"),
    ],
)
def test_the_limits(quality: Quality, said: str) -> None:
    assert quality.refusal(0.02, 0.92) == said


def test_the_default_limits_stand_between_what_was_measured() -> None:
    """The table in the module's docstring: both sides of the gap."""
    limits = Tune()
    for kl, agreement, passes in [(0.0135, 0.940, True), (0.0055, 0.954, True), (0.0611, 0.871, False)]:
        assert (not Quality(kl, agreement, 1).refusal(limits.max_kl, limits.min_agreement)) is passes


def test_a_model_says_what_it_says_itself(tiny: Path) -> None:
    quality = Gate(SMALL, tiny, TEXTS).judge(SMALL, tiny)
    assert quality.kl < 1e-4
    assert quality.agreement == 1
    assert quality.places > 100


def test_another_model_is_far_away(tiny: Path, tmp_path: Path) -> None:
    other = tiny_model.write(tmp_path / "other.gguf", seed=2)
    quality = Gate(SMALL, tiny, TEXTS).judge(SMALL, other)
    assert quality.kl > 1
    assert quality.agreement < 0.2
    assert quality.refusal(0.02, 0.92)


def test_fewer_bits_are_further_away(tiny: Path, tmp_path: Path) -> None:
    judge = Gate(SMALL, tiny, TEXTS)
    found = []
    for form in ("Q8_0", "Q6_K", "Q4_0"):
        requantize(tiny, tmp_path / f"{form}.gguf", form, 1, MOST)
        found.append(judge.judge(SMALL, tmp_path / f"{form}.gguf"))
    assert [one.kl for one in found] == sorted(one.kl for one in found)
    assert found[0].kl * 5 < found[2].kl
    assert found[0].agreement > found[2].agreement
    assert not found[0].refusal(Tune().max_kl, Tune().min_agreement)
    assert found[2].refusal(Tune().max_kl, Tune().min_agreement)


@pytest.mark.parametrize("change", [{"kv_type": "q8_0"}, {"flash_attention": "off"}, {"ubatch": 64}, {"threads": 2}])
def test_settings_are_judged_with_the_same_arithmetic_as_a_node_has(tiny: Path, change: dict[str, object]) -> None:
    quality = Gate(SMALL, tiny, TEXTS).judge(replace(SMALL, **change), tiny)
    assert quality.kl < 0.005
    if "kv_type" in change:
        assert quality.kl > 1e-7, "a coarser cache is seen"


def test_the_shipped_file_is_read_once(tiny: Path) -> None:
    told: list[tuple[int, int]] = []
    judge = Gate(SMALL, tiny, TEXTS)
    judge.judge(SMALL, tiny, lambda done, total: told.append((done, total)))
    first = len(told)
    judge.judge(SMALL, tiny, lambda done, total: told.append((done, total)))
    assert len(told) - first == first // 2
    assert told[-1][0] == told[-1][1]


def test_a_model_with_other_words_is_no_variant(tiny: Path, tmp_path: Path) -> None:
    other = tiny_model.write(tmp_path / "other.gguf", pieces=[" the", "e", " "])
    with pytest.raises(ModelFileError, match="another model"):
        Gate(SMALL, tiny, TEXTS).judge(SMALL, other)


@pytest.mark.parametrize(("own", "others"), [(0, 32), (32, 0)])
def test_a_model_that_reads_more_or_fewer_tokens_is_no_variant(tiny: Path, own: int, others: int) -> None:
    with pytest.raises(ModelFileError, match="another model"):
        Gate(replace(SMALL, context=own), tiny, TEXTS).judge(replace(SMALL, context=others), tiny)
