from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.bench.bare import BareLoop, BareRun
from node.settings import Engine

SETTINGS = Engine(slots=4, context=256, kv_tokens=256, threads=1)


@pytest.fixture(scope="module")
def bare(weights: Path) -> Iterator[BareLoop]:
    with BareLoop(SETTINGS, weights) as opened:
        yield opened


def test_a_rate_is_tokens_in_seconds() -> None:
    assert BareRun(300, 2.0).rate == 150


@pytest.mark.model
@pytest.mark.parametrize("streams", [1, 4])
def test_it_decodes_for_all(bare: BareLoop, streams: int) -> None:
    run = bare.run([bare.encode(f"Question {n}?") for n in range(streams)], 6)
    assert run.tokens == 6 * streams
    assert run.seconds > 0


@pytest.mark.model
def test_every_run_begins_with_an_empty_cache(bare: BareLoop) -> None:
    for _ in range(3):
        bare.run([bare.encode("How are you? " * 2)] * 4, 10)  # together more than half of the cache


@pytest.mark.model
def test_questions_are_put_as_a_chat(bare: BareLoop, weights: Path) -> None:
    assert len(bare.encode("Hi")) > 5
    assert bare.encode("Hi") != bare.encode("Ho")


@pytest.mark.model
@pytest.mark.parametrize(("streams", "tokens"), [(5, 3), (1, 0), (1, 513)])
def test_only_short_prompts_in_its_slots(bare: BareLoop, streams: int, tokens: int) -> None:
    with pytest.raises(ValueError, match="short prompts"):
        bare.run([[1] * tokens] * streams, 1)
