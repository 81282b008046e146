"""The sampler chain: what each parameter does to the draw."""

from __future__ import annotations

from collections import Counter

import pytest

from node.engine.llama import LlamaEngine
from node.engine.sampling import Candidates, Sampler, draw_seed
from node.generation import Request, Sampling

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def engine(llama_engine: LlamaEngine) -> LlamaEngine:
    """An engine whose context holds logits to draw from."""
    return llama_engine


def draws(
    engine: LlamaEngine, sampling: Sampling, count: int = 40, history: tuple[int, ...] = (), **extra: object
) -> list[int]:
    """Tokens drawn by fresh samplers, which saw `history`, from the logits after one prompt; seeds count up."""
    prompt = tuple(engine.model.encode("The weather today is"))
    engine.add(Request("logits", prompt, 4, sampling=Sampling(temperature=0)))
    engine.step()
    index = len(prompt) - 1
    drawn = []
    for turn in range(count):
        each = Sampling(
            **{**{f: getattr(sampling, f) for f in sampling.__dataclass_fields__}, "seed": sampling.seed + turn}
        )
        sampler = Sampler(Request("r", history, 20, sampling=each, **extra), engine._decoder.vocabulary)  # type: ignore[arg-type]
        drawn.append(sampler.sample(engine._context.handle, index, 0))
        sampler.close()
        sampler.close()  # twice is harmless
    engine.fail_all()
    return drawn


def test_greedy_is_one_token(engine: LlamaEngine) -> None:
    assert len(set(draws(engine, Sampling(temperature=0)))) == 1


def test_temperature_widens_and_top_k_narrows(engine: LlamaEngine) -> None:
    open_ = Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0)
    wide = len(set(draws(engine, open_)))
    narrow = len(set(draws(engine, Sampling(temperature=1.5, top_k=2, top_p=1.0, min_p=0.0))))
    assert narrow <= 2 < wide
    assert set(draws(engine, Sampling(temperature=1.5, top_k=1))) == set(draws(engine, Sampling(temperature=0)))


def test_top_p_and_min_p_cut_the_tail(engine: LlamaEngine) -> None:
    greedy = set(draws(engine, Sampling(temperature=0)))
    assert set(draws(engine, Sampling(temperature=1.0, top_k=0, top_p=0.0, min_p=0.0))) == greedy
    assert set(draws(engine, Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=1.0))) == greedy


def test_a_seed_repeats_the_draw(engine: LlamaEngine) -> None:
    hot = Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=11)
    assert draws(engine, hot, 10) == draws(engine, hot, 10)
    assert draws(engine, hot, 10) != draws(
        engine, Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=99), 10
    )


def test_llama_cpps_random_seed_is_never_meant(engine: LlamaEngine) -> None:
    hot = Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=0xFFFFFFFF)
    assert draws(engine, hot, 1) == draws(engine, hot, 1)


def test_bias_moves_the_choice(engine: LlamaEngine) -> None:
    token = engine.model.encode(" purple")[-1]
    assert set(draws(engine, Sampling(temperature=0, logit_bias=((token, 100.0),)), 3)) == {token}


def test_ignore_eos_never_draws_an_end(engine: LlamaEngine) -> None:
    ends = engine._decoder.vocabulary.eog
    towards = tuple((token, 100.0) for token in ends)
    biased = Sampling(temperature=0, logit_bias=towards)
    assert set(draws(engine, biased, 3)) <= ends
    assert not set(draws(engine, biased, 3, ignore_eos=True)) & ends


def test_the_repeat_penalty_sees_the_prompt(engine: LlamaEngine) -> None:
    likeliest = draws(engine, Sampling(temperature=0), 1)[0]
    strict = Sampling(temperature=0, repeat_penalty=10.0)
    assert draws(engine, strict, 1, history=(likeliest,))[0] != likeliest
    assert draws(engine, strict, 1, history=(likeliest, *[0] * 64))[0] == likeliest, "it looks back 64 tokens"


def test_presence_penalty_counts_the_answer_only(engine: LlamaEngine) -> None:
    counted = Counter(draws(engine, Sampling(temperature=0, presence_penalty=2.0, frequency_penalty=2.0), 2))
    assert set(counted) == set(draws(engine, Sampling(temperature=0), 2)), "fresh answers have no history"


def test_draw_seeds_differ_by_seed_and_number_and_are_never_the_random_one() -> None:
    seeds = {draw_seed(seed, number) for seed in range(100) for number in range(100)}
    assert len(seeds) > 9_990
    assert all(0 <= seed < 0xFFFFFFFF for seed in seeds)


def test_logits_of_any_origin_are_drawn_from_alike(engine: LlamaEngine) -> None:
    prompt = tuple(engine.model.encode("The weather today is"))
    engine.add(Request("logits", prompt, 4, sampling=Sampling(temperature=0)))
    engine.step()
    index = len(prompt) - 1
    logits = engine._context.logits(index).copy()
    vocabulary = engine._decoder.vocabulary
    candidates = Candidates(vocabulary.size)
    for seed in range(8):
        hot = Sampling(temperature=1.2, seed=seed, repeat_penalty=1.3, frequency_penalty=0.5)
        request = Request("r", prompt, 20, sampling=hot, ignore_eos=True)
        one, other = Sampler(request, vocabulary), Sampler(request, vocabulary)
        for number in range(4):
            expected = one.sample(engine._context.handle, index, number)
            assert other.pick(candidates.fill(logits), number) == expected
        one.close()
        other.close()
    engine.fail_all()
