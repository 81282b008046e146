"""Drafts change nothing but the speed: the same tokens come, whatever is guessed, in the real engine.

What is compared. Where a library computes a token's logits the same way alone and in a batch of a few, all tokens are
equal, at any temperature, since each draw has its own seed; llama.cpp's CPU kernels did so where these tests were
written, bit by bit, up to 32 tokens. Where kernels round otherwise, two tokens of nearly the same probability may
change places: greedy answers may part at a near tie (TIE in log-probability of the likeliest two), and nine of ten
sampled answers must be equal, which a wrong draw would not leave one of.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from node.engine.answers import Answers
from node.engine.batch import Chunk, Plan
from node.engine.blocks import BlockStore
from node.engine.draft import Drafts, without
from node.engine.llama import LlamaEngine
from node.engine.running import Running
from node.engine.wager import StepLine
from node.generation import Caller, Constraint, Embedded, Finished, Request, Sampling
from node.settings import Engine as EngineSettings
from tests.engine.conftest import THREADS, TIE, Outcome, assert_same_but_for_ties, run

GREEDY = Sampling(temperature=0)
ME = Caller("tenant", "user", "session")
QUESTIONS = ["List three colors.", "How do I set a timer?", "Say something about rivers and the sea."]


class Free(StepLine):
    """On this machine one step costs what another costs, so that every guess is made, and tests know no clock."""

    def observe(self, tokens: int, seconds: float) -> None:
        pass

    def seconds(self, tokens: int) -> float:
        return 1.0


class Liar:
    """Guesses the truth, but for some tokens."""

    def __init__(self, truth: Sequence[int], prompt: int, seed: int, wrong: float) -> None:
        self._truth, self._prompt = truth, prompt
        self._draw, self._wrong = random.Random(seed), wrong
        self.chance = 0.9

    def next(self, most: int, length: int) -> list[int]:
        said = self._truth[length - self._prompt :][:most]
        return [7 + self._draw.randrange(20_000) if self._draw.random() < self._wrong else token for token in said]

    def saw(self, length: int) -> None:
        pass


@pytest.fixture(scope="module")
def engine(weights: Path) -> Iterator[LlamaEngine]:
    settings = EngineSettings(slots=4, context=256, kv_tokens=256, threads=THREADS)
    opened = LlamaEngine(settings, "drafting", weights, BlockStore(32 << 20), Answers(1 << 20))
    opened._drafts._line = Free()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def plain(weights: Path) -> Iterator[LlamaEngine]:
    opened = LlamaEngine(EngineSettings(slots=4, context=256, threads=THREADS, drafts="off"), "plain", weights)
    yield opened
    assert opened.load.drafted == 0
    opened.close()


@pytest.fixture(autouse=True)
def _clean(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "engine" in request.fixturenames:
        opened: LlamaEngine = request.getfixturevalue("engine")
        opened.fail_all()
        assert opened._drafts._answers
        opened._drafts._answers.forget()


def ask(engine: LlamaEngine, text: str, id: str = "r", max_tokens: int = 40, **extra: object) -> Request:
    prompt = tuple(engine.model.chat([{"role": "user", "content": text}]))
    fields = {"sampling": GREEDY, "caller": ME, "logprobs": 5, **extra}
    return Request(id, prompt, max_tokens, **fields)  # type: ignore[arg-type]


def ids(outcome: Outcome) -> list[int]:
    return [token.id for token in outcome.tokens]


def whole(engine: LlamaEngine) -> Callable[[int, dict[str, Outcome]], None]:
    """After each step: the cache holds what each sequence says it does, and nothing of what was guessed wrong."""

    def look(step: int, outcomes: dict[str, Outcome]) -> None:
        for sequence in engine._sequences.values():
            memory = engine._context._memory
            last = engine._context._llama.llama_memory_seq_pos_max(memory, sequence.slot)
            assert last == sequence.cached - 1

    return look


@pytest.mark.model
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_asked_again_is_answered_the_same_in_fewer_steps(
    engine: LlamaEngine, plain: LlamaEngine, question: str
) -> None:
    expected = run(plain, [ask(plain, question)])["r"]
    steps: list[int] = []
    for _ in range(3):
        before, count = engine.load.accepted, [0]

        def look(step: int, outcomes: dict[str, Outcome], count: list[int] = count) -> None:
            count[0] = step
            whole(engine)(step, outcomes)

        outcome = run(engine, [ask(engine, question)], look)["r"]
        assert_same_but_for_ties(expected, outcome, tie=TIE)
        assert outcome.end == expected.end
        steps.append(count[0])
    assert engine.load.accepted - before >= 0.7 * len(expected.tokens)
    assert steps[2] < 0.5 * steps[0]


@pytest.mark.model
def test_sampled_answers_are_the_same_draw_for_draw(engine: LlamaEngine, plain: LlamaEngine) -> None:
    """The statistic at temperature 0.7: the share of answers that are equal in every token. It is 1 here."""
    equal, accepted = [], engine.load.accepted
    for seed in range(5):
        hot = Sampling(temperature=0.7, seed=seed)
        for question in QUESTIONS[:2]:
            expected = ids(run(plain, [ask(plain, question, max_tokens=24, sampling=hot)])["r"])
            for _ in range(2):
                equal.append(ids(run(engine, [ask(engine, question, max_tokens=24, sampling=hot)])["r"]) == expected)
    assert sum(equal) >= 0.9 * len(equal)
    assert engine.load.accepted - accepted > 100


@pytest.mark.model
@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0])
def test_lies_are_found_out(engine: LlamaEngine, plain: LlamaEngine, wrong: float) -> None:
    expected = run(plain, [ask(plain, QUESTIONS[0], max_tokens=30, ignore_eos=True)])["r"]
    request = ask(engine, QUESTIONS[0], max_tokens=30, ignore_eos=True)

    def lie(step: int, outcomes: dict[str, Outcome]) -> None:
        whole(engine)(step, outcomes)
        for sequence in engine._sequences.values():
            if sequence.guess is not None and not isinstance(sequence.guess, Liar):
                sequence.guess = Liar(ids(expected), len(request.prompt), 5, wrong)  # type: ignore[assignment]

    before = engine.load
    outcome = run(engine, [request], lie)["r"]
    assert_same_but_for_ties(expected, outcome, tie=TIE)
    assert outcome.end == Finished("length", len(request.prompt), 30)
    drafted, accepted = engine.load.drafted - before.drafted, engine.load.accepted - before.accepted
    assert drafted > 20
    assert accepted == drafted if wrong == 0 else accepted < 0.9 * drafted
    assert wrong < 1 or accepted == 0


@pytest.mark.model
def test_penalties_bias_and_logprobs_are_the_same(engine: LlamaEngine, plain: LlamaEngine) -> None:
    for sampling in (
        Sampling(temperature=0, repeat_penalty=1.3),
        Sampling(temperature=0, frequency_penalty=0.8, presence_penalty=0.4),
        Sampling(temperature=0.6, seed=3, repeat_penalty=1.2, logit_bias=((28, -3.0),)),
    ):
        expected = run(plain, [ask(plain, QUESTIONS[2], sampling=sampling, logprobs=5)])["r"]
        for _ in range(2):
            outcome = run(engine, [ask(engine, QUESTIONS[2], sampling=sampling, logprobs=5)])["r"]
            assert ids(outcome) == ids(expected)
            for one, other in zip(expected.tokens, outcome.tokens, strict=True):
                assert one.logprob
                assert other.logprob
                assert other.logprob.value == pytest.approx(one.logprob.value, abs=1e-2)


@pytest.mark.model
def test_a_grammar_holds_and_ends_within_a_draft(engine: LlamaEngine, plain: LlamaEngine) -> None:
    constraint = Constraint("regex", "(red|green), (red|green), (red|green)!")
    for one in (engine, plain):
        one.model.check(constraint)
    expected = run(plain, [ask(plain, "Colors?", constraint=constraint)])["r"]
    before = engine.load.accepted
    for _ in range(2):
        outcome = run(engine, [ask(engine, "Colors?", constraint=constraint)])["r"]
        assert outcome.text == expected.text
        assert outcome.end == expected.end
    assert engine.load.accepted > before


@pytest.mark.model
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7, 16, 17])
def test_the_limit_is_kept_to_the_token(engine: LlamaEngine, max_tokens: int) -> None:
    long = ids(run(engine, [ask(engine, QUESTIONS[2], max_tokens=30, ignore_eos=True)])["r"])
    outcome = run(engine, [ask(engine, QUESTIONS[2], max_tokens=max_tokens, ignore_eos=True)], whole(engine))["r"]
    assert ids(outcome) == long[:max_tokens]
    assert isinstance(outcome.end, Finished)
    assert outcome.end.completion_tokens == max_tokens
    assert engine.load[:3] == (0, 0, 0)


@pytest.mark.model
def test_held_cancelled_preempted_and_beside_an_embedding(engine: LlamaEngine, plain: LlamaEngine) -> None:
    request = ask(engine, QUESTIONS[0], max_tokens=40, ignore_eos=True)
    expected = run(plain, [request])["r"]
    run(engine, [request])
    again = replace(request, id="again")
    cancelled = replace(request, id="cancelled")
    embed = Request("embed", tuple(engine.model.encode("a cat sat on the mat")), 1, kind="embed")

    def disturb(step: int, outcomes: dict[str, Outcome]) -> None:
        whole(engine)(step, outcomes)
        engine.hold("again", step in (3, 4, 5))
        if step == 2:
            engine.cancel("cancelled")
            engine.add(embed)
        if step == 6 and (sequence := engine._sequences.get("again")):
            engine._preempt([sequence.slot])

    outcomes = run(engine, [again, cancelled], disturb)
    assert_same_but_for_ties(expected, outcomes["again"], tie=TIE)
    assert isinstance(outcomes["embed"].end, Embedded)
    assert isinstance(outcomes["cancelled"].end, Finished)
    assert outcomes["cancelled"].end.reason == "cancelled"


@pytest.mark.model
def test_drafts_take_no_cell_that_anybody_needs(engine: LlamaEngine, plain: LlamaEngine) -> None:
    requests = [ask(engine, QUESTIONS[0], id=str(n), max_tokens=90, ignore_eos=True) for n in range(4)]
    run(engine, requests[:1])
    preempted: list[str] = []

    def watch(step: int, outcomes: dict[str, Outcome]) -> None:
        whole(engine)(step, outcomes)
        assert engine.load.kv_used <= engine.load.kv_total
        preempted.extend(s.request.id for s in engine._sequences.values() if s.generated and not s.cached)

    outcomes = run(engine, requests, watch)
    assert preempted, "four such answers do not fit"
    expected = run(plain, requests[:1])["0"]
    for outcome in outcomes.values():
        assert_same_but_for_ties(expected, outcome, tie=TIE)


@pytest.mark.model
def test_another_sessions_answer_is_not_guessed(engine: LlamaEngine) -> None:
    run(engine, [ask(engine, QUESTIONS[1], max_tokens=20)])
    for session, expected in (("two", False), ("three", False), ("four", True)):
        request = ask(engine, QUESTIONS[1], max_tokens=20, caller=replace(ME, session=session))
        before = engine.load.drafted
        run(engine, [request])
        assert (engine.load.drafted > before) is expected, session
    before = engine.load.drafted
    run(engine, [ask(engine, QUESTIONS[1], max_tokens=20, caller=Caller("another tenant", "user", "session"))])
    assert engine.load.drafted == before


PLAN = Plan((Chunk(0, 1, True), Chunk(1, 1, True)))


def running(slot: int, max_tokens: int = 20, *, drafts: bool = True) -> Running:
    request = Request(str(slot), (1, 2, 3, 4, 1, 2, 3), max_tokens, caller=ME, drafts=drafts)
    sequence = Running(request, slot, None, None)
    sequence.cached = sequence.length - 1
    return sequence


def drafts(*, enabled: bool = True) -> Drafts:
    made = Drafts(None, {0}, enabled=enabled)
    made._line = Free()
    return made


def say(drafts: Drafts, sequence: Running, *tokens: int) -> None:
    for token in tokens:
        sequence.tokens[sequence.length] = token
        sequence.length += 1
        sequence.cached += 1
        sequence.generated += 1
        drafts.saw(sequence)


def test_a_plan_gets_drafts_for_those_who_have_a_guess() -> None:
    made, one, other = drafts(), running(0), running(1)
    say(made, one, 4)
    say(made, other, 9)
    plan = made.add(PLAN, {0: one, 1: other}, 100)
    assert plan.chunks == (Chunk(0, 5, True, 4), Chunk(1, 1, True))
    assert one.tokens[one.length : one.length + 4].tolist() == [1, 2, 3, 4]
    assert without(plan) == PLAN
    assert made.add(PLAN, {0: one, 1: other}, 2).chunks[0] == Chunk(0, 3, True, 2)
    assert made.add(PLAN, {0: one, 1: other}, 0) == PLAN


def test_never_more_than_may_still_be_said_and_the_last_needs_no_check() -> None:
    for left in range(4):
        made, one = drafts(), running(0, max_tokens=1 + left)
        say(made, one, 4)
        chunk = made.add(Plan((Chunk(0, 1, True),)), {0: one}, 100).chunks[0]
        assert chunk.drafts == max(0, left - 1)


def test_beside_a_prompt_and_when_turned_off_there_are_none() -> None:
    made, one, other = drafts(), running(0), running(1)
    say(made, one, 4)
    other.cached = 2
    plan = Plan((Chunk(0, 1, True), Chunk(1, 3, False)))
    assert made.add(plan, {0: one, 1: other}, 100) == plan
    assert made.add(Plan(()), {}, 100) == Plan(())
    off, one = drafts(enabled=False), running(0)
    say(off, one, 4)
    assert one.guess is None
    assert off.add(Plan(PLAN.chunks[:1]), {0: one}, 100) == Plan(PLAN.chunks[:1])


def test_a_request_that_may_have_none_gets_none() -> None:
    both = drafts()
    sequences = {0: running(0), 1: running(1, drafts=False)}
    for sequence in sequences.values():
        say(both, sequence, 4, 1)
    guessed, plain = both.add(PLAN, sequences, 100).chunks
    assert guessed.drafts > 0
    assert plain == PLAN.chunks[1]
