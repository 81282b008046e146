"""Loading, decoding and failing at it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from node.engine.decoder import Decoder, Part, closing_on_error
from node.engine.llama import LlamaEngine
from node.errors import EngineFailed, ModelFileError
from node.settings import Engine

pytestmark = pytest.mark.model


@pytest.fixture
def decoder(llama_engine: LlamaEngine) -> Decoder:
    return llama_engine._decoder


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "junk.gguf").write_bytes(b"GGUF" + b"\0" * 100)
    with pytest.raises(ModelFileError, match=r"junk\.gguf"):
        Decoder(Engine(), tmp_path / "junk.gguf")


def test_a_context_that_cannot_be_made_is_refused_and_nothing_stays(
    weights: Path, monkeypatch: pytest.MonkeyPatch, decoder: Decoder
) -> None:
    monkeypatch.setattr(decoder._llama, "llama_init_from_model", lambda *_: None)
    freed = []
    free = decoder._llama.llama_model_free
    monkeypatch.setattr(decoder._llama, "llama_model_free", lambda model: (freed.append(model), free(model)))
    with pytest.raises(ModelFileError, match="not enough memory"):
        Decoder(Engine(context=512), weights)
    assert len(freed) == 1


def test_decoding_gives_logits_and_a_forgotten_sequence_leaves_no_trace(decoder: Decoder) -> None:
    ids = np.array(decoder.vocabulary.encode("The sky is", special=False, bos=False), np.int32)

    def logits() -> list[float]:
        decoder.decode([Part(0, 0, ids, True)], states=False)
        values = decoder.logits(len(ids) - 1).copy()
        decoder.forget(0)
        assert values.shape == (decoder.vocabulary.size,)
        return list(values[:8])

    assert logits() == logits()


def test_states_can_be_read_and_turned_off_again(decoder: Decoder) -> None:
    ids = np.array(decoder.vocabulary.encode("a cat", special=False, bos=False), np.int32)
    decoder.decode([Part(1, 0, ids, True)], states=True)
    assert decoder.state(0).shape == (decoder.state_size,)
    decoder.forget(1)
    decoder.decode([Part(1, 0, ids, True)], states=False)
    decoder.forget(1)


def test_a_batch_that_makes_no_sense_is_an_error_not_a_crash(decoder: Decoder) -> None:
    with pytest.raises(EngineFailed, match="code -1"):
        decoder.decode([Part(0, 0, np.array([decoder.vocabulary.size + 5], np.int32), True)], states=False)
    decoder.forget_all()


def test_facts_about_the_default_model(decoder: Decoder) -> None:
    assert decoder.trained_context == 8192
    assert decoder.context_size == 512
    assert decoder.cells >= 512
    assert decoder.pooling == "none"
    assert "<|im_start|>" in (decoder.chat_template or "")


def test_closing_twice_is_harmless_and_happens_on_errors(weights: Path) -> None:
    decoder = Decoder(Engine(context=256, slots=1), weights)
    with pytest.raises(ValueError, match="later"), closing_on_error(decoder):
        raise ValueError("later")
    decoder.close()
    decoder.close()
