"""Loading, decoding and failing at it."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.engine.decoder import Decoder, closing_on_error
from node.engine.llama import LlamaEngine
from node.errors import ModelFileError
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


def test_facts_about_the_default_model(decoder: Decoder) -> None:
    assert decoder.trained_context == 8192
    assert decoder.context_size == 512
    assert decoder.context.cells >= 512
    assert decoder.pooling == "none"
    assert "<|im_start|>" in (decoder.chat_template or "")


def test_closing_twice_is_harmless_and_happens_on_errors(weights: Path) -> None:
    decoder = Decoder(Engine(context=256, slots=1), weights)
    with pytest.raises(ValueError, match="later"), closing_on_error(decoder):
        raise ValueError("later")
    decoder.close()
    decoder.close()


def test_two_contexts_share_a_model(decoder: Decoder) -> None:
    other = decoder.open_context(256, 1, 1, 1)
    assert other.cells == 256
    other.close()
    other.close()
    assert decoder.context.handle
    assert decoder.threads >= 1
    assert not decoder.offloads or decoder._llama.llama_supports_gpu_offload()
