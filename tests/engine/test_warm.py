"""Warm prefixes in the real engine: shared, kept, cut, and never anybody else's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from node.engine import aside
from node.engine.blocks import BLOCK, BlockStore, Ids
from node.engine.llama import LlamaEngine
from node.engine.warm import LEAST, TILE, Warm, in_tiles
from node.generation import Caller, Event, Finished, Request, Sampling, Started
from node.settings import Engine as EngineSettings
from tests.engine.conftest import THREADS, Outcome, assert_alike, run, take

pytestmark = pytest.mark.model
GREEDY = Sampling(temperature=0)
PREAMBLE = (
    "You are the kiosk of a small museum by the sea. Be brief and kind. The museum opens at nine and closes at five; "
    "the cafe on the roof sells cake, tea and soup until four. Dogs wait outside, children pay nothing, and the boat "
    "to the island leaves from the pier twice a day. Here is a question that a visitor asked: "
)


@pytest.fixture(scope="module")
def opened(weights: Path) -> Iterator[tuple[LlamaEngine, BlockStore]]:
    store = BlockStore(1 << 30)
    settings = EngineSettings(slots=4, context=512, kv_tokens=512, threads=THREADS, drafts="off")
    engine = LlamaEngine(settings, "llama", weights, store)
    yield engine, store
    engine.close()


@pytest.fixture
def engine(opened: tuple[LlamaEngine, BlockStore]) -> Iterator[LlamaEngine]:
    opened[1].clear()
    yield opened[0]
    opened[0].fail_all()
    assert opened[0].load.kv_used == 0


@pytest.fixture
def store(opened: tuple[LlamaEngine, BlockStore]) -> BlockStore:
    return opened[1]


def ask(engine: LlamaEngine, text: str, id: str = "r", max_tokens: int = 3, **extra: object) -> Request:
    prompt = tuple(engine.model.encode(PREAMBLE + text))
    values = {"sampling": GREEDY, "ignore_eos": True, "logprobs": 5, **extra}
    return Request(id, prompt, max_tokens, **values)  # type: ignore[arg-type]


def cached(outcome: Outcome) -> int:
    (started,) = [event for event in outcome.events if isinstance(event, Started)]
    return started.cached_tokens


def array(tokens: tuple[int, ...]) -> Ids:
    return np.array(tokens, np.int32)


def test_the_second_asking_reads_one_token_and_answers_the_same(engine: LlamaEngine) -> None:
    request = ask(engine, "What is a whale?")
    cold = run(engine, [request])["r"]
    warm = run(engine, [request])["r"]
    assert cached(cold) == 0
    assert cached(warm) == len(request.prompt) - 1
    assert_alike(cold, warm)


def test_another_question_shares_the_preamble_only(engine: LlamaEngine, store: BlockStore) -> None:
    one, other = ask(engine, "What is a whale?"), ask(engine, "Where is the exit?")
    cold = run(engine, [other])["r"]
    alike = next(n for n, (a, b) in enumerate(zip(one.prompt, other.prompt, strict=False)) if a != b)
    assert alike % BLOCK, "the test is about a cut block"
    store.clear()
    run(engine, [one])
    warm = run(engine, [other])["r"]
    assert cached(warm) >= alike
    assert_alike(cold, warm)


def test_a_conversation_goes_on_behind_its_last_answer(engine: LlamaEngine) -> None:
    request = ask(engine, "What is a whale?")
    first = run(engine, [request])["r"]
    turn = Request("r", (*request.prompt, *(token.id for token in first.tokens), 100, 200, 300), 2, sampling=GREEDY)
    outcome = run(engine, [turn])["r"]
    assert cached(outcome) >= len(request.prompt) + len(first.tokens) - 1


def test_a_continued_answer_begins_behind_what_it_said(engine: LlamaEngine) -> None:
    request = ask(engine, "What is a whale?", max_tokens=6)
    said = tuple(token.id for token in run(engine, [request])["r"].tokens[:4])
    rest = run(engine, [dataclasses.replace(request, continued=said)])["r"]
    assert cached(rest) == len(request.prompt), "what is reported is of the prompt"
    assert len(rest.tokens) == 2


def test_tenants_do_not_share(engine: LlamaEngine) -> None:
    run(engine, [ask(engine, "What is a whale?", caller=Caller(tenant="a"))])
    requests = [ask(engine, "What is a whale?", id=tenant, caller=Caller(tenant=tenant)) for tenant in ("b", "c", "a")]
    outcomes = run(engine, requests)
    assert cached(outcomes["b"]) == cached(outcomes["c"]) == 0
    assert cached(outcomes["a"]) == len(requests[0].prompt) - 1


def test_those_that_begin_alike_read_it_once_and_share_its_cells(engine: LlamaEngine, store: BlockStore) -> None:
    """Also while the first is still reading it: the others wait for it instead of reading it too."""
    requests = [ask(engine, text, id=text) for text in ("whale", "exit", "sea")]
    most = 0

    def watch(step: int, outcomes: dict[str, Outcome]) -> None:
        nonlocal most
        most = max(most, engine.load.kv_used)

    outcomes = run(engine, requests, watch)
    assert cached(outcomes["whale"]) == 0
    assert cached(outcomes["exit"]) >= BLOCK
    assert cached(outcomes["sea"]) >= BLOCK
    assert most <= sum(len(request.prompt) + request.max_tokens for request in requests) - 2 * BLOCK
    for request in requests:
        store.clear()
        assert_alike(run(engine, [request])[request.id], outcomes[request.id])


def test_nobody_waits_for_one_that_is_held(engine: LlamaEngine) -> None:
    first, second = ask(engine, "whale", id="first"), ask(engine, "exit", id="second")
    engine.add(first)
    engine.hold("first", True)
    outcomes = {"first": Outcome(), "second": Outcome()}
    engine.add(second)
    while not outcomes["second"].end:
        take(engine, outcomes)
    assert cached(outcomes["second"]) == 0
    engine.cancel("first")


def test_a_preempted_sequence_comes_back_warm(engine: LlamaEngine) -> None:
    request = ask(engine, "What is a whale?", max_tokens=5)
    warm: list[int] = []

    def disturb(step: int, outcomes: dict[str, Outcome]) -> None:
        if sequence := engine._sequences.get("r"):
            warm.append(sequence.warm)
            if len(outcomes["r"].tokens) == 3:
                engine._preempt([sequence.slot])

    assert len(run(engine, [request], disturb)["r"].tokens) == 5
    assert warm[0] == 0
    assert warm[-1] == len(request.prompt) + 2


def test_after_a_failure_nothing_of_it_is_kept(engine: LlamaEngine, store: BlockStore) -> None:
    engine.add(ask(engine, "What is a whale?"))
    engine.step()
    engine.fail_all()
    assert store.bytes == 0


def test_a_prefix_is_read_block_by_block_and_leaves_no_cell(engine: LlamaEngine, store: BlockStore) -> None:
    request = ask(engine, "What is a whale?")
    cold = run(engine, [request])["r"]
    store.clear()
    ids = array(request.prompt[:72])
    assert engine.warm
    assert [engine.warm.read("", ids) for _ in range(3)] == [64, 72, 72]
    assert engine._context._llama.llama_memory_seq_pos_max(engine._context._memory, engine._context.spare_slot) == -1
    warm = run(engine, [request])["r"]
    assert cached(warm) == 72
    assert_alike(cold, warm)


class Unread:
    """A context that must not be asked to decode."""

    spare_slot, cells = 0, 512

    def __getattr__(self, verb: str) -> object:
        raise AssertionError(f"{verb} was asked for")


@pytest.mark.parametrize("tokens", [0, 1, LEAST - 1, 513])
def test_what_would_not_be_kept_is_not_read(tokens: int) -> None:
    warm = Warm(Unread(), BlockStore(1 << 30), lambda: 0.0)  # type: ignore[arg-type]
    assert warm.read("", np.zeros(tokens, np.int32)) == 0


def test_nothing_is_read_that_cannot_be(engine: LlamaEngine) -> None:
    assert engine.warm
    assert engine.warm.read("", array(())) == 0
    assert engine.warm.read("", np.zeros(600, np.int32)) == 0


def test_an_exported_prefix_serves_another_engine_and_ends_where_it_ends(
    engine: LlamaEngine, store: BlockStore
) -> None:
    request = ask(engine, "What is a whale?")
    cold = run(engine, [request])["r"]
    ids = array(request.prompt[:72])
    assert engine.warm
    states = engine.warm.export("", ids)
    assert states
    assert len(states) == 2
    assert len(states[1]) < len(states[0]) / 2, "only 8 of 64 tokens"
    assert engine.warm.export("", array((7, 8, 9))) is None
    store.clear()
    for end, state in zip((64, 72), states, strict=True):
        store.put("", ids[:end], state)
    warm = run(engine, [request])["r"]
    assert cached(warm) == 72
    assert_alike(cold, warm)


def test_what_does_not_fit_beside_the_others_is_read_when_it_does(engine: LlamaEngine) -> None:
    run(engine, [ask(engine, "What is a whale?")])
    big = Request("big", tuple(engine.model.encode("The river runs to the sea. " * 200)[:400]), 2, sampling=GREEDY)
    more = Request("more", tuple(engine.model.encode("A hill is a small mountain. " * 200)[:400]), 2, sampling=GREEDY)
    outcomes = run(engine, [big, more, ask(engine, "What is a whale?")])
    assert all(isinstance(outcome.end, Finished) for outcome in outcomes.values())
    assert cached(outcomes["r"]) > 0


def test_a_prompt_read_aside_starts_from_what_is_warm(engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "LEAST", 40)
    monkeypatch.setattr(engine._side, "_able", True)
    request = ask(engine, " A whale is a big animal." * 10, id="long")
    cold = run(engine, [request])["long"]
    engine._prefixes._store.clear()  # type: ignore[union-attr]
    run(engine, [ask(engine, "What?")])
    outcomes = {"stream": Outcome(), "long": Outcome()}
    engine.add(Request("stream", tuple(engine.model.encode("Once upon")), 200, sampling=GREEDY, ignore_eos=True))
    while len(outcomes["stream"].tokens) < 2:
        take(engine, outcomes)
    engine.add(request)
    began_aside = False
    while not outcomes["long"].end:
        take(engine, outcomes)
        began_aside |= engine._side._reading is not None
    engine.cancel("stream")
    assert began_aside
    assert cached(outcomes["long"]) >= len(engine.model.encode(PREAMBLE)) - 2
    assert_alike(cold, outcomes["long"])


def test_embeddings_use_and_leave_nothing(engine: LlamaEngine, store: BlockStore) -> None:
    request = ask(engine, "What is a whale?", kind="embed")
    first = run(engine, [request])["r"]
    assert store.bytes == 0
    run(engine, [ask(engine, "What is a whale?")])
    again = run(engine, [request])["r"]
    assert cached(again) == 0
    assert again.end == first.end


def test_without_a_store_nothing_is_warm(weights: Path) -> None:
    settings = EngineSettings(slots=2, context=256, threads=THREADS, drafts="off")
    engine = LlamaEngine(settings, "llama", weights)
    assert engine.warm is None
    request = Request("r", tuple(engine.model.encode("The sky is")), 3, sampling=GREEDY)
    events: list[Event] = []
    for _ in range(2):
        events += run(engine, [request])["r"].events
    assert [event.cached_tokens for event in events if isinstance(event, Started)] == [0, 0]
    engine.close()


@pytest.mark.parametrize(
    ("warm", "rest", "kept"),
    [
        (1500, 48, 1484),
        (1500, 64, 1500),
        (1500, 20, 1500),  # twenty loose rows are cheaper than forty-four more
        (1500, 1, 1500),
        (1500, 64 + 48, 1484),
        (250, 50, 250),  # with little before them, loose rows cost little
        (3000, 28, 2964),
        (10, 60, 10),
    ],
)
def test_a_rest_that_is_nearly_a_tile_becomes_one(warm: int, rest: int, kept: int) -> None:
    assert in_tiles(warm, warm + rest) == kept
    assert kept == warm or (warm + rest - kept) % TILE == 0


def test_rounding_never_gives_more_than_is_warm_nor_next_to_nothing() -> None:
    for warm in range(LEAST, 200):
        for rest in range(1, 140):
            assert LEAST <= in_tiles(warm, warm + rest) <= warm


def test_what_is_read_again_for_a_whole_tile_answers_the_same(engine: LlamaEngine) -> None:
    ids = [*engine.model.encode(PREAMBLE * 6)][:400]
    ends = [engine.model.encode(f"{word} and a tale of the sea " * 12)[1:51] for word in ("Whales", "Ships")]
    asked = [
        Request(f"{n}", (*ids, *end), 3, sampling=GREEDY, ignore_eos=True, logprobs=5) for n, end in enumerate(ends)
    ]
    cold = run(engine, [asked[1]])["1"]
    again = run(engine, [dataclasses.replace(asked[1], prompt=(*ids, *ends[0]))])["1"]
    assert cached(again) == 386
    run(engine, [asked[0]])
    assert_alike(cold, run(engine, [asked[1]])["1"])
