"""Constraints: compiled once, copied cheaply, hostile ones refused."""

from __future__ import annotations

import json
import threading
import time

import numpy as np
import pytest

from node.engine import guide as guide_module
from node.engine.guide import Guide
from node.engine.llama import LlamaEngine
from node.errors import InvalidRequest
from node.generation import Constraint

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def guide(llama_engine: LlamaEngine) -> Guide:
    return llama_engine._llama_model.guide


def allowed(guide: Guide, engine: LlamaEngine, constraint: Constraint, text: str) -> set[str]:
    """The texts of the tokens that may follow `text`."""
    vocabulary = engine._decoder.vocabulary
    matcher = guide.matcher(constraint)
    for token in vocabulary.encode(text, special=False, bos=False):
        assert matcher.accept(token)
    logits = np.zeros(vocabulary.size, np.float32)
    assert matcher.apply(logits)
    return {vocabulary.raw(int(token)).decode(errors="replace") for token in np.flatnonzero(logits == 0)}


@pytest.mark.parametrize(
    ("constraint", "text", "follows"),
    [
        (Constraint("regex", "[ab]c"), "a", {"c"}),
        (Constraint("lark", 'start: "x" ("1" | "2")'), "x", {"1", "2"}),
    ],
)
def test_the_mask_is_what_the_grammar_allows(
    guide: Guide, llama_engine: LlamaEngine, constraint: Constraint, text: str, follows: set[str]
) -> None:
    guide.check(constraint)
    assert allowed(guide, llama_engine, constraint, text) == follows


def test_copies_do_not_share_their_place(guide: Guide, llama_engine: LlamaEngine) -> None:
    constraint = Constraint("regex", "ab?")
    assert "b" in allowed(guide, llama_engine, constraint, "a")
    assert allowed(guide, llama_engine, constraint, "") == {"a", "ab"}


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("json_schema", '{"type": "nonsense"}'),
        Constraint("json_schema", "{"),
        Constraint("json_schema", '{"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}'),
        Constraint("regex", "(unclosed"),
        Constraint("lark", "start: missing"),
    ],
)
def test_an_unusable_constraint_is_an_error_in_words(guide: Guide, constraint: Constraint) -> None:
    with pytest.raises(InvalidRequest, match="cannot be used") as error:
        guide.check(constraint)
    assert error.value.status == 400


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("json_schema", json.dumps({"type": "array", "minItems": 10**9, "items": {"type": "integer"}})),
        Constraint("regex", "(a{1,1000}){1,1000}b{1,100000}"),
        Constraint("json_schema", json.dumps({"enum": [f"word number {n}" for n in range(20_000)]})),
    ],
)
def test_a_huge_constraint_is_refused_or_runs_but_never_stalls(
    guide: Guide, llama_engine: LlamaEngine, constraint: Constraint
) -> None:
    began = time.monotonic()
    try:
        guide.check(constraint)
    except InvalidRequest:
        return
    matcher = guide.matcher(constraint)
    logits = np.zeros(llama_engine._decoder.vocabulary.size, np.float32)
    while matcher.apply(logits) and time.monotonic() - began < 1:
        if not matcher.accept(int(logits.argmax())):
            break
        logits[:] = 0
    assert matcher.reason
    assert time.monotonic() - began < 20, "compiling is bounded by llguidance's fuel"


def test_the_oldest_compiled_grammar_goes_first(guide: Guide, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guide_module, "KEPT", 2)
    first, second, third = (Constraint("regex", f"z{n}") for n in range(3))
    for constraint in (first, second, first, third):
        guide.check(constraint)
    assert list(guide._compiled) == [first, third]


def test_markers_cannot_be_spelled(guide: Guide, llama_engine: LlamaEngine) -> None:
    follows = allowed(guide, llama_engine, Constraint("regex", "(.|\n)*"), "a")
    assert "<|im_start|>" not in follows
    assert "hello" in follows


def test_a_slow_compile_holds_nobody_up(guide: Guide, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = Constraint("regex", "quick")
    guide.check(ready)
    release, compiling = threading.Event(), threading.Event()
    compile_one = guide._compile

    def slow(constraint: Constraint) -> object:
        compiling.set()
        release.wait(5)
        return compile_one(constraint)

    monkeypatch.setattr(guide, "_compile", slow)
    thread = threading.Thread(target=guide.check, args=(Constraint("regex", "slow"),))
    thread.start()
    assert compiling.wait(5)
    assert guide.matcher(ready), "while the other one is still being compiled"
    release.set()
    thread.join()


def test_what_failed_to_compile_is_not_kept(guide: Guide) -> None:
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            guide.check(Constraint("regex", "(((("))
    assert Constraint("regex", "((((") not in guide._compiled
