"""What any thread may ask of the default model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from node.engine.llama import LlamaEngine
from node.engine.model import LoadedModel
from node.errors import ContextLengthExceeded, InvalidRequest, Unsupported
from node.generation import Constraint

pytestmark = pytest.mark.model


def test_many_threads_may_ask_at_once(llama_engine: LlamaEngine) -> None:
    model = llama_engine.model
    text = "naïve 👍 words " * 50
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: model.encode(text), range(16)))
        pool.map(lambda n: model.check(Constraint("regex", f"a{n}")), range(16))
    assert all(result == results[0] for result in results)
    assert model.decode(results[0]).decode() == text


def test_a_model_without_a_template_cannot_chat_but_complete(llama_engine: LlamaEngine) -> None:
    plain = LoadedModel(llama_engine.model.info, llama_engine._decoder.vocabulary, None)
    with pytest.raises(Unsupported, match="completions"):
        plain.chat([{"role": "user", "content": "hi"}])
    assert plain.encode("hi")


def test_constraints_are_checked(llama_engine: LlamaEngine) -> None:
    with pytest.raises(InvalidRequest):
        llama_engine.model.check(Constraint("regex", "("))


def test_megabytes_are_refused_by_their_size(llama_engine: LlamaEngine) -> None:
    text = "x" * (llama_engine.model.info.context * llama_engine._decoder.vocabulary.longest + 1)
    with pytest.raises(ContextLengthExceeded):
        llama_engine.model.encode(text)
    with pytest.raises(ContextLengthExceeded) as error:
        llama_engine.model.chat([{"role": "user", "content": text}])
    assert error.value.param == "messages"
