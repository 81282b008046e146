"""Log-probabilities, unit vectors, and how embeddings are pooled."""

from __future__ import annotations

import math

import numpy as np
import pytest

from node.engine import distribution


def test_log_probabilities_are_a_log_softmax() -> None:
    logits = np.array([1.0, 3.0, 2.0, -np.inf], np.float32)
    found = distribution.logprob(logits, 2, 2)
    total = math.log(sum(math.exp(x) for x in (1, 3, 2)))
    assert found.value == pytest.approx(2 - total)
    assert [token for token, _ in found.top] == [1, 2]
    assert found.top[0][1] == pytest.approx(3 - total)


def test_large_logits_do_not_overflow_and_no_alternatives_are_none() -> None:
    found = distribution.logprob(np.array([1e4, 1e4], np.float32), 0, 0)
    assert found.value == pytest.approx(math.log(0.5))
    assert found.top == ()


def test_vectors_have_length_one() -> None:
    assert distribution.unit(np.array([3, 4], np.float32)) == pytest.approx((0.6, 0.8))
    assert distribution.unit(np.zeros(2, np.float32)) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("setting", "own", "pooled"), [("auto", "none", "mean"), ("auto", "last", "last"), ("none", "mean", "none")]
)
def test_pooling(setting: str, own: str, pooled: str) -> None:
    assert distribution.pooling(setting, own) == pooled
