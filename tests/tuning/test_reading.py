"""What a model says at every place: the same as when it answers, whichever engine runs it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from node.engine.context import Part
from node.engine.decoder import Decoder
from node.settings import Engine
from node.tuning import reading
from node.tuning.gate import Gate
from node.tuning.reading import distributions, log_softmax, passages, stride
from tests.tuning.conftest import SMALL
from tests.tuning.test_gate import TEXTS, logits, vector


@given(logits)
def test_log_softmax_is_a_distribution(values: list[float]) -> None:
    found = log_softmax(vector(values))
    assert math.isclose(float(np.exp(found.astype(np.float64)).sum()), 1, rel_tol=1e-4)
    assert found[np.argmax(vector(values))] == found.max()


@given(logits, st.floats(-1000, 1000, width=32))
def test_a_shift_of_all_logits_is_nothing(values: list[float], shift: float) -> None:
    one, other = log_softmax(vector(values)), log_softmax(vector(values) + np.float32(shift))
    assert np.allclose(one, other, atol=1e-2)


def test_every_place_gives_what_decoding_word_by_word_gives(tiny: Path) -> None:
    found = list(distributions(SMALL, tiny, TEXTS[1:], lambda done, total: None))
    decoder = Decoder(replace(SMALL, context=128), tiny)
    ids = np.array(decoder.vocabulary.encode(TEXTS[1], special=False, bos=decoder.vocabulary.adds_bos), np.int32)
    for place, own in enumerate(found):
        decoder.context.decode([Part(0, place, ids[place : place + 1], True)])
        assert np.allclose(own, log_softmax(decoder.context.logits(0)), atol=0.05)
    assert place + 1 == len(ids)
    decoder.close()


def test_a_short_context_cuts_the_texts(tiny: Path) -> None:
    found = list(distributions(replace(SMALL, context=32), tiny, TEXTS, lambda done, total: None))
    assert len(found) == 2 * 32


def test_with_a_large_vocabulary_fewer_places_are_compared(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stride(2346, 49_152) == 1
    assert stride(2346, 262_144) == 5
    assert stride(10, 10) == 1
    everything = Gate(SMALL, tiny, TEXTS).judge(SMALL, tiny).places
    monkeypatch.setattr(reading, "_MOST_BYTES", 269 * 2 * everything // 3)
    some = Gate(SMALL, tiny, TEXTS).judge(SMALL, tiny)
    assert everything // 4 < some.places < everything // 2
    assert some.agreement == 1


def test_the_shipped_texts_are_many_and_of_many_kinds() -> None:
    texts = passages()
    assert len(texts) >= 10
    assert all(100 < len(text) < 2000 for text in texts)
    together = "\n".join(texts)
    for sign in ("User:", "def ", '{"order"', "| unit |", "Straßenbahn", "Question:"):
        assert sign in together


def test_engines_of_other_shapes_are_cut_down_to_what_is_needed() -> None:
    small = reading._small(Engine(slots=200, kv_tokens=1 << 20, context=0, threads=3), ("x" * 99,))
    assert (small.slots, small.kv_tokens, small.context, small.threads) == (1, 0, 101, 3)
    assert reading._small(Engine(context=64), ("x" * 99,)).context == 64


def test_progress_ends_at_the_end(tiny: Path) -> None:
    told: list[tuple[int, int]] = []
    places = len(list(distributions(SMALL, tiny, TEXTS, lambda done, total: told.append((done, total)))))
    assert told[-1] == (places, places)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


@pytest.mark.onnx
def test_the_other_engine_reads_the_same_tokens_and_nearly_the_same_words(weights: Path, onnx_folder: Path) -> None:
    text = ("The ferry to the island leaves from pier four at every full hour.",)
    shipped = Gate(Engine(threads=1), weights, text)
    quality = shipped.judge(Engine(kind="onnx", threads=1), onnx_folder)
    assert quality.places > 10
    assert quality.kl < 0.1
    assert quality.agreement > 0.8
