"""What every engine must do, whatever library is behind it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from node.engine.base import Engine
from node.errors import EngineFailed, InvalidRequest
from node.generation import Constraint, Embedded, Finished, Request, Sampling, Started
from tests.engine.conftest import Outcome, assert_alike, run, take

GREEDY = Sampling(temperature=0)


def ask(engine: Engine, text: str, id: str = "r", max_tokens: int = 12, **extra: object) -> Request:
    prompt = tuple(engine.model.chat([{"role": "user", "content": text}]))
    return Request(id, prompt, max_tokens, **{"sampling": GREEDY, **extra})  # type: ignore[arg-type]


def test_events_come_in_order_and_end_once(engine: Engine) -> None:
    outcome = run(engine, [ask(engine, "Say something about rivers.", ignore_eos=True)])["r"]
    assert isinstance(outcome.events[0], Started)
    assert len(outcome.tokens) == 12
    assert outcome.end == Finished("length", len(ask(engine, "Say something about rivers.").prompt), 12)
    assert outcome.events[-1] is outcome.end


def test_same_seed_same_prompt_same_text(engine: Engine) -> None:
    request = ask(engine, "Name a colour.", sampling=Sampling(temperature=1.0, seed=42))
    first = run(engine, [request])["r"]
    second = run(engine, [request])["r"]
    assert first.text == second.text
    assert first.text


def test_many_at_once_each_get_their_own_answer(engine: Engine) -> None:
    questions = ["Say one.", "Say something about the moon and the tides.", "What is a river?", "Red or blue?"]
    requests = [ask(engine, text, id=text, max_tokens=8, logprobs=5, ignore_eos=True) for text in questions]
    together = run(engine, requests)
    for request in requests:
        alone = run(engine, [request])[request.id]
        assert_alike(alone, together[request.id])


def test_slots_are_reused(engine: Engine) -> None:
    for turn in range(3):
        outcomes = run(engine, [ask(engine, f"Turn {turn}", id=str(n), max_tokens=2) for n in range(4)])
        assert all(isinstance(outcome.end, Finished) for outcome in outcomes.values())
    assert engine.load[:3] == (0, 0, 0)


def test_cancel_while_the_prompt_is_read(engine: Engine) -> None:
    request = Request("long", tuple(engine.model.encode("word " * 150)), 5, sampling=GREEDY)
    outcomes: dict[str, Outcome] = {"long": Outcome()}
    engine.add(request)
    engine.cancel("long")
    take(engine, outcomes)
    assert outcomes["long"].end == Finished("cancelled", len(request.prompt), 0)
    assert engine.load[:3] == (0, 0, 0)


def test_cancel_while_decoding_frees_the_cache_within_one_step(engine: Engine) -> None:
    def cancel_one(step: int, outcomes: dict[str, Outcome]) -> None:
        if len(outcomes["a"].tokens) == 3 and outcomes["a"].end is None:
            engine.cancel("a")
            take(engine, outcomes)
            assert isinstance(outcomes["a"].end, Finished)
            assert outcomes["a"].end.reason == "cancelled"

    pair = [ask(engine, "Tell a long story.", id=id, max_tokens=16, ignore_eos=True) for id in "ab"]
    outcomes = run(engine, pair, cancel_one)
    assert len(outcomes["a"].tokens) in (3, 4)
    assert len(outcomes["b"].tokens) == 16
    engine.cancel("a")  # an unknown id is no error
    engine.cancel("never")


def test_a_held_request_waits_without_cost_and_goes_on(engine: Engine) -> None:
    def hold(step: int, outcomes: dict[str, Outcome]) -> None:
        if len(outcomes["a"].tokens) == 4:
            engine.hold("a", outcomes["b"].end is None)
        else:
            assert len(outcomes["a"].tokens) < 4 or outcomes["b"].end is not None

    pair = [ask(engine, "Tell a long story.", id=id, max_tokens=16, logprobs=5, ignore_eos=True) for id in "ab"]
    outcomes = run(engine, pair, hold)
    assert len(outcomes["a"].tokens) == len(outcomes["b"].tokens) == 16
    assert_alike(outcomes["a"], outcomes["b"])
    engine.hold("never", True)


def test_holding_everything_leaves_nothing_active_and_cancel_still_works(engine: Engine) -> None:
    engine.add(ask(engine, "Hello", id="a"))
    engine.hold("a", True)
    assert engine.load.active == 0
    assert engine.step() == []
    engine.cancel("a")
    assert [event for _, event in engine.step()] == [Finished("cancelled", len(ask(engine, "Hello").prompt), 0)]


def test_a_held_request_leaves_its_slot_to_others_and_needs_one_to_go_on(engine: Engine) -> None:
    outcomes = {id: Outcome() for id in "abcdef"}
    for id in "abcd":
        engine.add(ask(engine, "Tell a long story.", id=id, max_tokens=16, ignore_eos=True))
    with pytest.raises(EngineFailed, match="slots are taken"):
        engine.add(ask(engine, "Me too", id="e"))
    while len(outcomes["a"].tokens) < 4:
        take(engine, outcomes)
    engine.hold("a", True)
    engine.hold("a", True)  # is so already
    engine.add(ask(engine, "Me too", id="e", max_tokens=24, ignore_eos=True))
    with pytest.raises(EngineFailed, match="slots are taken"):
        engine.hold("a", False)
    while not outcomes["b"].end:
        take(engine, outcomes)
    assert len(outcomes["a"].tokens) == 4, "a refused one stays held"
    engine.hold("a", False)
    while not (outcomes["a"].end and outcomes["e"].end):
        take(engine, outcomes)
    assert outcomes["a"].text == outcomes["b"].text
    assert not outcomes["f"].events


def test_as_many_may_be_parked_as_the_model_says(engine: Engine) -> None:
    info = engine.model.info
    assert info.parked == 4
    for number in range(info.parked):
        engine.add(ask(engine, "Wait", id=f"parked{number}"))
        engine.hold(f"parked{number}", True)
    runners = [f"runs{number}" for number in range(info.slots)]
    for id in runners:
        engine.add(ask(engine, "Go", id=id, max_tokens=2, ignore_eos=True))
    engine.hold(runners[0], True)  # holding is never refused
    with pytest.raises(EngineFailed, match="may be held"):
        engine.add(ask(engine, "One too many", id="last"))
    outcomes: dict[str, Outcome] = {}
    while engine.load.active:
        take(engine, outcomes)
    assert sorted(outcomes) == runners[1:]
    assert engine.load.requests == info.parked + 1
    engine.cancel("parked0")
    take(engine, outcomes)
    assert isinstance(outcomes["parked0"].end, Finished)


def test_a_newcomer_joins_while_others_stream(engine: Engine) -> None:
    def join(step: int, outcomes: dict[str, Outcome]) -> None:
        if len(outcomes["first"].tokens) == 4 and "second" not in outcomes:
            outcomes["second"] = Outcome()
            engine.add(ask(engine, "And you?", id="second", max_tokens=3, ignore_eos=True))

    first = ask(engine, "Tell a long story.", id="first", max_tokens=40, ignore_eos=True)
    outcomes = run(engine, [first], join)
    assert len(outcomes["second"].tokens) == 3
    assert len(outcomes["first"].tokens) == 40


def test_logprobs_are_reported_when_asked_for(engine: Engine) -> None:
    outcome = run(engine, [ask(engine, "Hello", max_tokens=3, logprobs=3, ignore_eos=True)])["r"]
    for token in outcome.tokens:
        assert token.logprob is not None
        assert token.logprob.value <= 1e-6
        values = [value for _, value in token.logprob.top]
        assert values == sorted(values, reverse=True)
        assert token.logprob.top[0][0] == token.id  # greedy takes the likeliest
        assert sum(map(math.exp, values)) <= 1 + 1e-6


def test_embeddings_are_unit_vectors_that_depend_on_the_text(engine: Engine) -> None:
    prompts = {text: tuple(engine.model.encode(text)) for text in ("a cat sat", "stock prices fell")}
    requests = [Request(text, prompt, 1, kind="embed") for text, prompt in prompts.items()]
    outcomes = run(engine, requests)
    vectors = []
    for text, prompt in prompts.items():
        end = outcomes[text].end
        assert isinstance(end, Embedded)
        assert len(end.vector) == engine.model.info.embedding_size
        assert math.isclose(math.hypot(*end.vector), 1.0, rel_tol=1e-5)
        assert end.prompt_tokens == len(prompt)
        vectors.append(end.vector)
    assert vectors[0] != vectors[1]


def test_an_embedding_beside_a_stream_changes_neither(engine: Engine) -> None:
    stream = ask(engine, "Tell a long story.", id="s", max_tokens=8, logprobs=5, ignore_eos=True)
    embed = Request("e", tuple(engine.model.encode("a cat sat")), 1, kind="embed")
    both = run(engine, [stream, embed])
    assert_alike(run(engine, [stream])["s"], both["s"])
    alone, beside = run(engine, [embed])["e"].end, both["e"].end
    assert isinstance(alone, Embedded)
    assert isinstance(beside, Embedded)
    assert sum(a * b for a, b in zip(alone.vector, beside.vector, strict=True)) > 0.999


def test_a_continued_answer_is_the_rest_of_the_whole_one(engine: Engine) -> None:
    hot = Sampling(temperature=0.9, seed=5, repeat_penalty=1.1, frequency_penalty=0.2)
    request = ask(engine, "Tell a long story about a river.", max_tokens=16, sampling=hot, ignore_eos=True)
    whole = run(engine, [request])["r"]
    for count in (1, 7, 15):
        ids = tuple(token.id for token in whole.tokens)
        rest = run(engine, [replace(request, continued=ids[:count])])["r"]
        assert tuple(token.id for token in rest.tokens) == ids[count:]
        assert rest.end == whole.end, "tokens of both lives are counted"


def test_text_goes_there_and_back(engine: Engine) -> None:
    text = "naïve 👍 <|im_end|> \n end"
    assert engine.model.decode(engine.model.encode(text)).decode().strip() == text


def test_a_bad_constraint_is_refused_before_anything_runs(engine: Engine) -> None:
    with pytest.raises(InvalidRequest):
        engine.model.check(Constraint("json_schema", '{"type": "nonsense"}'))


def test_fail_all_clears_everything(engine: Engine) -> None:
    engine.add(ask(engine, "Hello", id="a"))
    engine.add(ask(engine, "Hello", id="b"))
    engine.step()
    assert sorted(engine.fail_all()) == ["a", "b"]
    assert engine.load[:3] == (0, 0, 0)
    assert run(engine, [ask(engine, "Hello", id="c", max_tokens=2)])["c"].tokens


def test_engines_keep_the_protocol(engine: Engine) -> None:
    info = engine.model.info
    assert info.context == 1024
    assert info.slots == 4
    assert info.vocabulary_size >= 256
    assert engine.load.kv_total >= info.context
