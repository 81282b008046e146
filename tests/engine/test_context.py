"""A context: decoding, failing at it, reading states, moving a sequence to another context."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from msgspec import convert

from node.engine.context import BATCH, CacheFull, Context, Part
from node.engine.decoder import Decoder
from node.engine.llama import LlamaEngine
from node.engine.vocabulary import Vocabulary
from node.errors import EngineFailed
from node.settings import Engine as EngineSettings

pytestmark = pytest.mark.model


@pytest.fixture
def context(llama_engine: LlamaEngine) -> Context:
    return llama_engine._context


@pytest.fixture
def vocabulary(llama_engine: LlamaEngine) -> Vocabulary:
    return llama_engine._decoder.vocabulary


def test_decoding_gives_logits_and_a_forgotten_sequence_leaves_no_trace(
    context: Context, vocabulary: Vocabulary
) -> None:
    ids = np.array(vocabulary.encode("The sky is", special=False, bos=False), np.int32)

    def logits() -> list[float]:
        context.decode([Part(0, 0, ids, True)], states=False)
        values = context.logits(len(ids) - 1).copy()
        context.forget(0)
        assert values.shape == (vocabulary.size,)
        return list(values[:8])

    assert logits() == logits()


def test_states_can_be_read_and_turned_off_again(context: Context, vocabulary: Vocabulary) -> None:
    ids = np.array(vocabulary.encode("a cat", special=False, bos=False), np.int32)
    context.decode([Part(1, 0, ids, True)], states=True)
    assert context.state(0).shape == (context.state_size,)
    context.forget(1)
    context.decode([Part(1, 0, ids, True)], states=False)
    context.forget(1)


def test_a_batch_that_makes_no_sense_is_an_error_not_a_crash(context: Context, vocabulary: Vocabulary) -> None:
    with pytest.raises(EngineFailed, match="code -1"):
        context.decode([Part(0, 0, np.array([vocabulary.size + 5], np.int32), True)], states=False)
    context.forget_all()


def test_a_sequence_moves_to_another_context_and_gives_the_same_logits(
    llama_engine: LlamaEngine, context: Context, vocabulary: Vocabulary
) -> None:
    ids = np.array(vocabulary.encode("The river runs to the sea and the", special=False, bos=False), np.int32)
    context.decode([Part(0, 0, ids, True)])
    expected = context.logits(len(ids) - 1).copy()
    context.forget(0)
    other = llama_engine._decoder.open_context(256, 1, 1, 1)
    other.decode([Part(0, 0, ids[:-1], False)])
    context.give(2, other.take(0, 0, len(ids) - 1))
    other.close()
    context.decode([Part(2, len(ids) - 1, ids[-1:], True)])
    got = context.logits(0).copy()
    context.forget(2)
    assert int(got.argmax()) == int(expected.argmax())
    assert float(np.abs(got - expected).max()) < 0.5, "batch shapes change only the last bits"


def test_what_does_not_fit_is_refused_and_leaves_nothing(small_engine: LlamaEngine) -> None:
    context, ids = small_engine._context, np.full(BATCH, 100, np.int32)
    other = small_engine._decoder.open_context(256, 1, 1, 1)
    other.decode([Part(0, 0, ids[:150], False)])
    context.decode([Part(1, 0, ids[: context.cells - 100], False)])
    with pytest.raises(CacheFull):
        context.give(0, other.take(0, 0, 140))
    other.close()
    context.forget(1)
    context.decode([Part(0, 0, ids[:8], True)])
    context.forget(0)


def test_a_sequence_in_pieces_is_the_sequence(context: Context, vocabulary: Vocabulary) -> None:
    ids = np.array(vocabulary.encode("The river runs to the sea and the " * 4, special=False, bos=False), np.int32)
    context.decode([Part(0, 0, ids, True)])
    whole = context.take(0, 0, len(ids) - 1)
    pieces = [context.take(0, start, min(start + 8, len(ids) - 1)) for start in range(0, len(ids) - 1, 8)]

    def logits() -> list[float]:
        context.decode([Part(0, len(ids) - 1, ids[-1:], True)])
        return list(context.logits(0))

    def again(*states: bytes) -> list[float]:
        context.forget_all()
        for state in states:
            context.give(0, state)
        return logits()

    context.trim(0, len(ids) - 1)
    expected = logits()
    assert again(whole) == expected
    assert again(*pieces) == expected
    assert again(*pieces[:2], *pieces[2:]) == expected
    context.forget_all()


def test_a_shared_beginning_is_no_copy_and_outlives_its_lender(context: Context, vocabulary: Vocabulary) -> None:
    ids = np.array(vocabulary.encode("The sky is blue and the sea is", special=False, bos=False), np.int32)
    context.decode([Part(0, 0, ids[:-1], False)])
    context.share(0, 1, len(ids) - 3)
    context.forget(0)
    context.decode([Part(1, len(ids) - 3, ids[-3:], True)])
    shared = int(context.logits(2).argmax())
    context.forget(1)
    context.decode([Part(1, 0, ids, True)])
    assert shared == int(context.logits(len(ids) - 1).argmax())
    context.forget(1)


def test_threads_can_change_between_steps(context: Context, vocabulary: Vocabulary) -> None:
    before = context.threads
    context.use_threads(2)
    assert context.threads == 2
    context.use_threads(before)


@pytest.mark.parametrize(
    ("kv_type", "flash_attention", "batch", "ubatch"),
    [("f32", "off", 64, 0), ("f16", "on", 96, 32), ("q8_0", "auto", 512, 64), ("q4_0", "on", 64, 64)],
)
def test_every_shape_of_a_context_reads_the_same_text(
    weights: Path, llama_engine: LlamaEngine, kv_type: str, flash_attention: str, batch: int, ubatch: int
) -> None:
    changes = {"kv_type": kv_type, "flash_attention": flash_attention, "batch": batch, "ubatch": ubatch}
    settings = convert({"slots": 1, "context": 128, "threads": 1, **changes}, EngineSettings)
    with closing(Decoder(settings, weights)) as decoder:
        ids = np.array(decoder.vocabulary.encode("One two three four five six", special=False, bos=False), np.int32)
        assert decoder.context.batch == batch
        decoder.context.decode([Part(0, 0, ids, True)])
        shaped = decoder.context.logits(len(ids) - 1).copy()
        with pytest.raises(ValueError, match="broadcast"):  # a plan for another batch never reaches llama.cpp
            decoder.context.decode([Part(0, 0, np.zeros(batch + 1, np.int32), True)])
    llama_engine._context.decode([Part(0, 0, ids, True)])
    plain = llama_engine._context.logits(len(ids) - 1).copy()
    llama_engine._context.forget(0)
    assert plain.argmax() in np.argsort(shaped)[-3:]
    assert np.corrcoef(shaped, plain)[0, 1] > 0.99
