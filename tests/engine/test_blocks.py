"""Blocks in host memory: longest prefixes, tenants, budgets, against a naive model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.engine.blocks import BLOCK, BlockStore, Ids, Owner, block_start, common_length

COST = 2 * BLOCK * 4  # of a block whose state is its tokens


def ids(*tokens: int) -> Ids:
    return np.array(tokens, np.int32)


def text(size: int, seed: int = 0) -> Ids:
    return np.random.default_rng(seed).integers(0, 50_000, size).astype(np.int32)


def keep(store: BlockStore, owner: Owner, tokens: Ids) -> bool:
    """As an engine does it: block after block; the state of a block is its tokens."""
    ends = [*range(BLOCK, len(tokens), BLOCK), len(tokens)]
    return all([store.put(owner, tokens[:end], tokens[block_start(end) : end].tobytes()) for end in ends])


def test_what_was_kept_is_found_to_the_token() -> None:
    store, long = BlockStore(1 << 20), text(200)
    assert store.match("a", long) == (0, ())
    assert keep(store, "a", long)
    assert store.length("a", long) == 200
    assert store.length("a", long[:150]) == 150
    assert store.length("a", np.concatenate([long, text(50, 1)])) == 200
    tokens, blocks = store.match("a", np.concatenate([long[:100], text(50, 1)]))
    assert tokens == 100, "in the middle of a block"
    assert b"".join(blocks) == long[:128].tobytes()


def test_a_single_different_token_ends_the_match() -> None:
    store, long = BlockStore(1 << 20), text(200)
    keep(store, "a", long)
    for at in (0, 1, 63, 64, 65, 127, 128, 199):
        other = long.copy()
        other[at] += 1
        assert store.length("a", other) == at


def test_tenants_see_nothing_of_each_other_unless_they_share() -> None:
    store, long = BlockStore(1 << 20), text(100)
    keep(store, "a", long)
    assert store.length("b", long) == 0
    assert store.match("", long).tokens == 0
    shared = BlockStore(1 << 20, shared=True)
    keep(shared, shared.owner("a"), long)
    assert shared.length(shared.owner("b"), long) == 100


def test_what_nobody_owns_everybody_finds_and_goes_on_from() -> None:
    store, template = BlockStore(1 << 20), text(100)
    keep(store, None, template)
    mine = np.concatenate([template[:BLOCK], text(80, 1)])
    keep(store, "a", mine)
    assert store.bytes == COST + (36 + 64 + 16) * 8, "the template's first block is there once"
    assert store.length("a", mine) == len(mine)
    assert store.length("b", mine) == BLOCK
    assert store.length("b", template) == 100
    assert store.length(None, mine) == BLOCK, "and nobody gets what is somebody's"
    keep(store, None, mine)
    assert store.length("b", mine) == len(mine)


def test_what_prefixes_share_is_there_once() -> None:
    store, preamble = BlockStore(1 << 20), text(2 * BLOCK)
    for seed in range(1, 4):
        keep(store, "a", np.concatenate([preamble, text(BLOCK, seed)]))
    assert store.bytes == (2 + 3) * COST


def test_of_those_that_begin_alike_the_longest_stands_for_all() -> None:
    store, long = BlockStore(1 << 20), text(2 * BLOCK)
    keep(store, "a", long[:100])
    keep(store, "a", long)
    assert store.bytes == 2 * COST
    keep(store, "a", long[:90])
    assert store.bytes == 2 * COST
    assert store.length("a", long) == 2 * BLOCK


def test_a_block_without_those_before_it_is_refused() -> None:
    store, long = BlockStore(1 << 20), text(200)
    assert not store.put("a", long, b"x")
    assert store.put("a", long[:BLOCK], b"x")
    assert not store.put("a", long, b"x")
    assert store.length("a", long) == BLOCK


def test_the_least_recently_used_go_first_and_never_from_below_others() -> None:
    store = BlockStore(6 * COST)
    first, second, third = (text(2 * BLOCK, seed) for seed in range(3))
    for one in (first, second, third):
        keep(store, "a", one)
    store.match("a", first)
    keep(store, "a", text(BLOCK, 9))
    assert store.evictions == 1
    assert [store.length("a", one) for one in (first, second, third)] == [128, 64, 128]
    store.length("a", second)  # looking is no use
    keep(store, "a", text(BLOCK, 10))
    assert store.length("a", second) == 0
    assert store.bytes <= store.budget


def test_protected_prefixes_go_last() -> None:
    store = BlockStore(4 * COST)
    wanted, other = text(2 * BLOCK, 1), text(2 * BLOCK, 2)
    keep(store, "a", wanted)
    store.protect([("a", wanted)])
    keep(store, "a", other)
    keep(store, "a", text(2 * BLOCK, 3))
    assert store.length("a", wanted) == 128
    assert store.length("a", other) == 0
    store.protect([])
    keep(store, "a", text(2 * BLOCK, 4))
    assert store.length("a", wanted) == 0


def test_when_all_is_protected_the_oldest_goes_and_what_is_too_big_stays_out() -> None:
    store = BlockStore(2 * COST)
    wanted = text(2 * BLOCK)
    keep(store, "a", wanted)
    store.protect([("a", wanted)])
    assert not keep(store, "a", text(BLOCK, 1)), "the newcomer is the only one that is not protected"
    assert store.length("a", wanted) == 128
    assert not BlockStore(COST - 1).put("a", text(BLOCK), text(BLOCK).tobytes())


def test_a_longer_block_inherits_the_protection_of_the_one_it_stands_for() -> None:
    store, long = BlockStore(2 * COST), text(BLOCK)
    keep(store, "a", long[:40])
    store.protect([("a", long[:40])])
    keep(store, "a", long)
    keep(store, "a", text(BLOCK, 1))
    keep(store, "a", text(BLOCK, 2))
    assert store.length("a", long) == BLOCK


def test_memory_that_is_short_is_given_back_and_taken_again() -> None:
    store = BlockStore(10 * COST)
    keep(store, "a", text(4 * BLOCK))
    store.confine(2 * COST)
    assert (store.bytes, store.length("a", text(4 * BLOCK))) == (2 * COST, 2 * BLOCK)
    store.confine(-5)
    assert store.bytes == 0
    store.confine(1 << 40)
    keep(store, "a", text(11 * BLOCK))
    assert store.bytes == 10 * COST, "never more than the budget"


def test_dropping_leaves_what_others_need() -> None:
    store, preamble = BlockStore(1 << 20), text(BLOCK)
    one, two = (np.concatenate([preamble, text(100, seed)]) for seed in (1, 2))
    keep(store, "a", one)
    keep(store, "a", two)
    store.drop("a", one)
    assert (store.length("a", one), store.length("a", two)) == (BLOCK, len(two))
    store.drop("a", two)
    assert store.bytes == 0
    keep(store, "a", one)
    store.clear()
    assert (store.bytes, store.length("a", one)) == (0, 0)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [((), (), 0), ((1,), (), 0), ((1, 2), (1, 2, 3), 2), ((1, 2, 3), (1, 5, 3), 1), ((4,), (5,), 0)],
)
def test_common_length(one: tuple[int, ...], other: tuple[int, ...], expected: int) -> None:
    assert common_length(ids(*one), ids(*other)) == expected


WORDS = [text(40, seed) for seed in range(3)]
PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(
    lambda words: np.concatenate([WORDS[n] for n in words])
)
OWNERS = st.sampled_from(["a", "b", None])
PROGRAMS = st.lists(
    st.one_of(
        st.tuples(st.just("keep"), OWNERS, PROMPTS),
        st.tuples(st.just("match"), OWNERS, PROMPTS),
        st.tuples(st.just("drop"), OWNERS, PROMPTS),
        st.tuples(st.just("protect"), OWNERS, PROMPTS),
    ),
    max_size=25,
)


@settings(max_examples=150)
@given(program=PROGRAMS, blocks=st.sampled_from([3, 8, 1000]))
def test_random_programs_agree_with_a_list(program: list[tuple[str, Owner, Ids]], blocks: int) -> None:
    """Never more than was kept, never another's, never over budget; with room enough exactly what was kept."""
    store = BlockStore(blocks * COST)
    kept: list[tuple[Owner, Ids]] = []
    dropped = False
    for verb, owner, prompt in program:
        if verb == "keep":
            keep(store, owner, prompt)
            kept.append((owner, prompt))
        elif verb == "drop":
            store.drop(owner, prompt)
            dropped = True
        elif verb == "protect":
            store.protect([(owner, prompt)])
        best = max((common_length(prompt, one) for whose, one in kept if whose in (owner, None)), default=0)
        tokens, states = store.match(owner, prompt)
        assert b"".join(states)[: tokens * 4] == prompt[:tokens].tobytes()
        assert tokens == best if blocks == 1000 and not dropped else tokens <= best
        assert store.bytes <= store.budget
        assert store.bytes == sum(block.cost for block in store._by_use)
