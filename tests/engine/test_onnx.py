"""The ONNX engine beyond the conformance suite: agreement with llama.cpp, rows, room in the cache, structure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from node.engine.llama import LlamaEngine
from node.engine.onnx import OnnxEngine
from node.errors import ModelFileError
from node.generation import Constraint, Embedded, Finished, Request, Sampling
from node.settings import Engine
from tests.engine.conftest import Outcome, run, take

pytestmark = pytest.mark.onnx

GREEDY = Sampling(temperature=0)
SHORT = 6  # tokens: the quantized kernels of both libraries round differently, and longer texts part at a near tie
QUESTIONS = [
    "What is the capital of France?", "What is the capital of Japan?", "What is the capital of Italy?",
    "What is the capital of Germany?", "What is the capital of Spain?", "What is the capital of Egypt?",
    "What is the capital of Canada?", "What is the capital of Russia?", "Which planet is closest to the sun?",
    "Which planet is known as the Red Planet?", "What is the largest planet in our solar system?",
    "What is the largest ocean on Earth?", "Who wrote Romeo and Juliet?", "Who painted the Mona Lisa?",
    "How many days are in a week?", "How many legs does a spider have?", "What is the chemical symbol for water?",
    "What gas do plants absorb from the air?", "What is the freezing point of water in Celsius?",
    "What is 2 plus 2?", "What colour is the sky on a clear day?", "What is the opposite of hot?",
    "What is the tallest mountain on Earth?", "What language is spoken in Brazil?",
]  # fmt: skip


@pytest.fixture(scope="module")
def onnx_engine(onnx_folder: Path) -> Iterator[OnnxEngine]:
    """A cache that only two long requests fill."""
    settings = Engine(kind="onnx", slots=4, context=512, kv_tokens=512, threads=1)
    opened = OnnxEngine(settings, "onnx", onnx_folder)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _nothing_left(onnx_engine: OnnxEngine) -> Iterator[None]:
    yield
    onnx_engine.fail_all()


def ask(engine: OnnxEngine | LlamaEngine, text: str, id: str = "r", max_tokens: int = 8, **extra: object) -> Request:
    prompt = tuple(engine.model.chat([{"role": "user", "content": text}]))
    return Request(id, prompt, max_tokens, **{"sampling": GREEDY, **extra})  # type: ignore[arg-type]


@pytest.mark.model
def test_both_engines_give_the_same_greedy_text(onnx_engine: OnnxEngine, llama_engine: LlamaEngine) -> None:
    same = 0
    for question in QUESTIONS:
        one, other = (
            run(engine, [ask(engine, question, max_tokens=SHORT)])["r"].text for engine in (onnx_engine, llama_engine)
        )
        same += one == other
    assert len(QUESTIONS) == 24
    assert same >= 20


def test_a_prompt_longer_than_one_chunk(onnx_engine: OnnxEngine) -> None:
    prompt = tuple(onnx_engine.model.encode("The weather today is fine. " * 90))[:400]
    outcome = run(onnx_engine, [Request("r", prompt, 4, sampling=GREEDY, ignore_eos=True)])["r"]
    assert outcome.end == Finished("length", 400, 4)


def test_the_answer_is_the_same_whoever_leaves_beside_it(onnx_engine: OnnxEngine) -> None:
    story = ask(onnx_engine, "Tell a long story about a river.", "story", 16, ignore_eos=True)
    alone = run(onnx_engine, [story])["story"].text
    others = [ask(onnx_engine, f"Say {n}.", str(n), n, ignore_eos=True) for n in (2, 5, 9)]
    together = run(onnx_engine, [*others, story])  # rows move when the others end
    assert together["story"].text == alone


def test_a_held_request_goes_on_with_its_cells(onnx_engine: OnnxEngine) -> None:
    story = ask(onnx_engine, "Tell a long story about a river.", "story", 16, ignore_eos=True)
    alone = run(onnx_engine, [story])["story"].text
    outcomes: dict[str, Outcome] = {}
    onnx_engine.add(story)
    while len(outcomes.get("story", Outcome()).tokens) < 5:
        take(onnx_engine, outcomes)
    onnx_engine.hold("story", True)
    used = onnx_engine.load.kv_used
    assert used >= len(story.prompt)
    for n in range(4):
        onnx_engine.add(ask(onnx_engine, f"Say {n}.", str(n), 3, ignore_eos=True))
    while onnx_engine.load.active:
        take(onnx_engine, outcomes)
    assert onnx_engine.load.kv_used == used
    onnx_engine.hold("story", False)
    while onnx_engine.load.active:
        take(onnx_engine, outcomes)
    assert outcomes["story"].text == alone


def test_more_than_fits_is_done_one_after_another(onnx_engine: OnnxEngine) -> None:
    prompt = tuple(onnx_engine.model.encode("word " * 300))[:280]
    requests = [Request(id, prompt, 4, sampling=GREEDY, ignore_eos=True) for id in "ab"]
    seen = []

    def look(step: int, outcomes: dict[str, Outcome]) -> None:
        seen.append(onnx_engine.load.kv_used)

    outcomes = run(onnx_engine, requests, look)
    assert outcomes["a"].text == outcomes["b"].text
    assert max(seen) <= onnx_engine.load.kv_total == 512


def test_a_held_request_gives_its_cells_back_when_others_need_them(onnx_engine: OnnxEngine) -> None:
    prompt = tuple(onnx_engine.model.encode("word " * 300))[:280]
    outcomes: dict[str, Outcome] = {}
    onnx_engine.add(Request("held", prompt, 4, sampling=GREEDY, ignore_eos=True))
    while not outcomes.get("held", Outcome()).tokens:
        take(onnx_engine, outcomes)
    onnx_engine.hold("held", True)
    onnx_engine.add(Request("other", prompt, 4, sampling=GREEDY, ignore_eos=True))
    while onnx_engine.load.active:
        take(onnx_engine, outcomes)
    assert onnx_engine.load.kv_used == 0
    onnx_engine.hold("held", False)
    while onnx_engine.load.active:
        take(onnx_engine, outcomes)
    assert len(outcomes["held"].tokens) == 4


def test_structured_output_keeps_its_schema(onnx_engine: OnnxEngine) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"],
              "additionalProperties": False}  # fmt: skip
    constraint = Constraint("json_schema", json.dumps(schema))
    onnx_engine.model.check(constraint)
    outcome = run(onnx_engine, [ask(onnx_engine, "A number?", max_tokens=24, constraint=constraint, logprobs=1)])["r"]
    assert isinstance(outcome.end, Finished)
    assert outcome.end.reason == "stop"
    assert isinstance(json.loads(outcome.text)["n"], int)
    assert all(token.logprob is not None for token in outcome.tokens)


def test_a_choice_by_pattern(onnx_engine: OnnxEngine) -> None:
    request = ask(onnx_engine, "Is water wet?", constraint=Constraint("regex", "(yes|no)"))
    assert run(onnx_engine, [request])["r"].text in (b"yes", b"no")


def test_seeds_decide_and_biases_bind(onnx_engine: OnnxEngine) -> None:
    hot = ask(onnx_engine, "Name a colour.", sampling=Sampling(temperature=1.2, seed=1), max_tokens=10)
    texts = {run(onnx_engine, [replace(hot, sampling=replace(hot.sampling, seed=seed))])["r"].text for seed in range(4)}
    assert len(texts) > 1
    (token,) = onnx_engine.model.encode("!")
    forced = ask(onnx_engine, "Hi", max_tokens=3, sampling=Sampling(temperature=0, logit_bias=((token, 1000.0),)))
    assert run(onnx_engine, [forced])["r"].text == b"!!!"


def test_an_embedding_longer_than_a_chunk_is_the_mean_of_all(onnx_engine: OnnxEngine) -> None:
    prompt = tuple(onnx_engine.model.encode("a cat sat on a mat " * 30))[:200]
    alone = run(onnx_engine, [Request("e", prompt, 1, kind="embed")])["e"].end
    beside = run(onnx_engine, [ask(onnx_engine, "Hi"), Request("e", prompt, 1, kind="embed")])["e"].end
    assert isinstance(alone, Embedded)
    assert isinstance(beside, Embedded)
    assert alone.vector == pytest.approx(beside.vector, abs=1e-5)  # sums of other pieces


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"it has no genai_config\.json"):
        OnnxEngine(Engine(kind="onnx"), "x", tmp_path)
