"""The rest of a prompt behind its beginning, with the real model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from node.bench.behind import Behind
from node.settings import Engine
from tests.engine.conftest import THREADS

pytestmark = pytest.mark.model

PROMPT = tuple(range(300, 420))
OTHER = (*PROMPT[:70], *range(500, 530))


@pytest.fixture(scope="module")
def behind(weights: Path) -> Iterator[Behind]:
    with Behind(Engine(context=512, batch=64, threads=THREADS), weights) as opened:
        yield opened


def logits(behind: Behind, rows: int) -> np.ndarray:  # type: ignore[type-arg]
    return behind._decoder.context.logits(rows - 1).copy()


def test_what_is_read_behind_a_beginning_is_the_prompt_as_if_read_at_once(behind: Behind, weights: Path) -> None:
    assert behind.seconds(PROMPT, 100) > 0
    last = logits(behind, 20)
    with Behind(Engine(context=512, threads=THREADS), weights) as whole:
        whole.seconds(PROMPT, 0)
        assert int(np.argmax(logits(whole, len(PROMPT)))) == int(np.argmax(last))


def test_another_prompt_keeps_only_what_both_begin_with(behind: Behind) -> None:
    behind.seconds(OTHER, 80)
    first = logits(behind, 20)
    behind.seconds(PROMPT, 100)
    behind.seconds(OTHER, 80)
    assert np.allclose(logits(behind, 20), first, atol=1e-3)


def test_a_rest_may_take_several_batches(behind: Behind) -> None:
    behind.seconds(PROMPT, 10)
    several = logits(behind, (len(PROMPT) - 10) % 64)
    behind.seconds(PROMPT, 100)
    assert int(np.argmax(several)) == int(np.argmax(logits(behind, 20)))
