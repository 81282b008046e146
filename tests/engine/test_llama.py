"""What only the llama.cpp engine does: shared cells, preemption, constraints, markers, end of text."""

from __future__ import annotations

import json

import pytest

from node.engine.context import CacheFull
from node.engine.llama import LlamaEngine
from node.generation import Constraint, Failed, Finished, Request, Sampling
from tests.engine.conftest import TIE, Outcome, assert_alike, assert_same_but_for_ties, run, take

pytestmark = pytest.mark.model
GREEDY = Sampling(temperature=0)


def ask(engine: LlamaEngine, text: str, id: str = "r", max_tokens: int = 12, **extra: object) -> Request:
    prompt = tuple(engine.model.chat([{"role": "user", "content": text}]))
    return Request(id, prompt, max_tokens, **{"sampling": GREEDY, **extra})  # type: ignore[arg-type]


def test_a_full_cache_preempts_the_youngest_and_loses_nothing(small_engine: LlamaEngine) -> None:
    requests = [ask(small_engine, f"Story {n}", id=str(n), max_tokens=75, ignore_eos=True) for n in range(3)]
    preempted = []

    def watch(step: int, outcomes: dict[str, Outcome]) -> None:
        assert small_engine.load.kv_used <= small_engine.load.kv_total
        preempted.extend(s.request.id for s in small_engine._sequences.values() if s.generated and not s.cached)

    outcomes = run(small_engine, requests, watch)
    assert preempted, "3 x 110 tokens do not fit 256 cells"
    assert "0" not in preempted, "the oldest is never sent back"
    for request in requests:
        outcome = outcomes[request.id]
        assert outcome.end == Finished("length", len(request.prompt), 75)
        assert len(outcome.tokens) == 75


def test_a_preempted_answer_goes_on_where_it_was(llama_engine: LlamaEngine) -> None:
    request = ask(llama_engine, "List three colors.", max_tokens=24, ignore_eos=True)
    undisturbed = run(llama_engine, [request])["r"].text

    def disturb(step: int, outcomes: dict[str, Outcome]) -> None:
        if len(outcomes["r"].tokens) in (5, 11):
            llama_engine._preempt([llama_engine._sequences["r"].slot])

    assert run(llama_engine, [request], disturb)["r"].text == undisturbed


@pytest.mark.parametrize("crowd", [1, 3])
def test_a_parked_answer_is_the_same_whether_its_cells_were_kept_or_read_again(
    small_engine: LlamaEngine, crowd: int
) -> None:
    """Greedy tokens are compared, and where they part, whether it was at a near tie.

    Kept cells give the very same numbers. Cells that are read again in one batch differ in the last bits of floats from
    those that were decoded one by one, so that two tokens of nearly the same probability may change places.
    """
    request = ask(small_engine, "List three colors.", id="parked", max_tokens=50, logprobs=5, ignore_eos=True)
    undisturbed = run(small_engine, [request])["parked"]
    others = [ask(small_engine, f"Story {n}", id=str(n), max_tokens=70, ignore_eos=True) for n in range(crowd)]
    outcomes: dict[str, Outcome] = {"parked": Outcome()}
    engine, kept = small_engine, []
    engine.add(request)
    while len(outcomes["parked"].tokens) < 15:
        take(engine, outcomes)
    engine.hold("parked", True)
    for other in others:
        engine.add(other)
    while engine.load.active:
        take(engine, outcomes)
        kept.append(engine._sequences["parked"].cached > 0)
    assert all(kept) == (crowd == 1), "three long answers need its cells, one does not"
    engine.hold("parked", False)
    while outcomes["parked"].end is None:
        take(engine, outcomes)
    assert_same_but_for_ties(undisturbed, outcomes["parked"], tie=0.0 if crowd == 1 else TIE)


def test_a_parked_sequence_gives_way_before_anyone_is_preempted_or_kept_waiting(small_engine: LlamaEngine) -> None:
    outcomes: dict[str, Outcome] = {}
    small_engine.add(ask(small_engine, "Story", id="parked", max_tokens=100, ignore_eos=True))
    while small_engine.load.kv_used < 75:
        take(small_engine, outcomes)
    small_engine.hold("parked", True)
    prompt = tuple(small_engine.model.encode("word " * 125))[:125]
    for id in "ab":
        small_engine.add(Request(id, prompt, 4, sampling=GREEDY, ignore_eos=True))
    take(small_engine, outcomes)
    assert not small_engine._sequences["parked"].cached, "2 x 125 + 75 cells are more than there are"
    while small_engine.load.active:
        cached = {s.request.id: s.cached for s in small_engine._sequences.values()}
        take(small_engine, outcomes)
        assert all(s.cached >= cached[s.request.id] for s in small_engine._sequences.values()), "none was sent back"


def test_held_sequences_give_their_cells_to_those_that_need_them(small_engine: LlamaEngine) -> None:
    held = [ask(small_engine, f"Story {n}", id=f"held{n}", max_tokens=75, ignore_eos=True) for n in range(2)]
    hungry = ask(small_engine, "Story", id="hungry", max_tokens=190, ignore_eos=True)

    def hold(step: int, outcomes: dict[str, Outcome]) -> None:
        if len(outcomes["held0"].tokens) == 50:
            for request in held:
                small_engine.hold(request.id, outcomes["hungry"].end is None)

    outcomes = run(small_engine, [*held, hungry], hold)
    assert [len(outcomes[id].tokens) for id in ("held0", "held1", "hungry")] == [75, 75, 190]


def test_when_the_library_finds_no_cells_the_youngest_gives_way(
    llama_engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, refusals = llama_engine._context.decode, iter([False, False, False, True])

    def sometimes_full(*args: object, **kwargs: object) -> None:
        if next(refusals, False):
            raise CacheFull
        decode(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(llama_engine._context, "decode", sometimes_full)
    outcomes = run(llama_engine, [ask(llama_engine, "Hi", id=id, max_tokens=8, ignore_eos=True) for id in "ab"])
    assert all(len(outcome.tokens) == 8 for outcome in outcomes.values())


def test_a_request_that_never_fits_fails_alone(llama_engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise CacheFull

    with monkeypatch.context() as patch:
        patch.setattr(llama_engine._context, "decode", full)
        end = run(llama_engine, [ask(llama_engine, "Hi")])["r"].end
    assert isinstance(end, Failed)
    assert run(llama_engine, [ask(llama_engine, "Hi", max_tokens=2)])["r"].tokens


def test_end_of_text_stops_and_is_not_shown(llama_engine: LlamaEngine) -> None:
    outcome = run(llama_engine, [ask(llama_engine, "Tell me about the moon in one sentence.", max_tokens=100)])["r"]
    assert outcome.end == Finished(
        "stop", len(ask(llama_engine, "Tell me about the moon in one sentence.").prompt), 29
    ) or (isinstance(outcome.end, Finished) and outcome.end.reason == "stop")
    assert outcome.text.endswith(b".")


def test_a_schema_is_kept_to_the_last_brace(llama_engine: LlamaEngine) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "size": {"enum": ["small", "large"]}},
        "required": ["city", "size"],
        "additionalProperties": False,
    }
    constraint = Constraint("json_schema", json.dumps(schema))
    llama_engine.model.check(constraint)
    hot = Sampling(temperature=1.5, seed=3)
    outcome = run(llama_engine, [ask(llama_engine, "A city?", max_tokens=80, constraint=constraint, sampling=hot)])["r"]
    answer = json.loads(outcome.text)
    assert answer["size"] in ("small", "large")
    assert len(answer["city"]) <= 12
    assert isinstance(outcome.end, Finished)
    assert outcome.end.reason == "stop"


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        (Constraint("regex", "[0-9]{3}-[a-c]{2}"), r"^\d{3}-[a-c]{2}$"),
        (Constraint("lark", 'start: "yes" | "no"'), "^(yes|no)$"),
    ],
)
def test_regex_and_grammar(llama_engine: LlamaEngine, constraint: Constraint, expected: str) -> None:
    llama_engine.model.check(constraint)
    text = run(llama_engine, [ask(llama_engine, "Go", constraint=constraint, max_tokens=20)])["r"].text.decode()
    assert __import__("re").match(expected, text), text


def test_a_constrained_and_a_free_answer_share_a_batch(llama_engine: LlamaEngine) -> None:
    free = ask(llama_engine, "List three colors.", id="free", max_tokens=10, logprobs=5)
    constraint = Constraint("regex", "[x]{8}")
    llama_engine.model.check(constraint)
    bound = ask(llama_engine, "Go", id="bound", constraint=constraint, max_tokens=20)
    both = run(llama_engine, [free, bound])
    assert both["bound"].text == b"xxxxxxxx"
    assert_alike(run(llama_engine, [free])["free"], both["free"])


def test_a_long_prompt_is_read_in_chunks_while_another_streams(llama_engine: LlamaEngine) -> None:
    stream = ask(llama_engine, "Story", id="stream", max_tokens=60, ignore_eos=True)
    llama_engine.add(stream)
    outcomes = {"stream": Outcome(), "long": Outcome()}
    while len(outcomes["stream"].tokens) < 3:
        take(llama_engine, outcomes)
    llama_engine.add(Request("long", tuple(llama_engine.model.encode("word " * 300))[:300], 2, sampling=GREEDY))
    before = len(outcomes["stream"].tokens)
    while not outcomes["long"].tokens:
        count = len(outcomes["stream"].tokens)
        take(llama_engine, outcomes)
        assert len(outcomes["stream"].tokens) == count + 1 or outcomes["stream"].end, "every step serves the stream"
    assert len(outcomes["stream"].tokens) > before + 1, "the prompt took more than one step"


def test_logit_bias_and_penalties_reach_the_sampler(llama_engine: LlamaEngine) -> None:
    plain = run(llama_engine, [ask(llama_engine, "List three colors.")])["r"]
    first = plain.tokens[0].id
    banned = Sampling(temperature=0, logit_bias=((first, -100.0),))
    assert run(llama_engine, [ask(llama_engine, "List three colors.", sampling=banned)])["r"].tokens[0].id != first
    # A frequency penalty this high forbids every repetition.
    strict = Sampling(temperature=0, frequency_penalty=2.0, presence_penalty=2.0, repeat_penalty=5.0)
    tokens = [
        t.id
        for t in run(llama_engine, [ask(llama_engine, "List three colors.", max_tokens=30, sampling=strict)])[
            "r"
        ].tokens
    ]
    assert len(set(tokens)) > 0.9 * len(tokens)
