"""From the tree to candidates: all that may be warm, with what it begins with, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from node.prewarm.demand import HalfLives
from node.prewarm.offer import offer
from node.prewarm.plan import Candidate
from node.prewarm.tree import DEEPEST, Node, PrefixTree, pack, unpack


def tree(quorum: int = 2) -> PrefixTree:
    return PrefixTree(quorum, 1 << 30, HalfLives(), since=0.0)


def add(to: PrefixTree, ids: Sequence[int], session: int, tenant: str = "") -> int:
    return to.add(tenant, pack(ids), session, 1.0).id


def by_text(offered: dict[Candidate, Node]) -> dict[tuple[int, ...], Candidate]:
    return {tuple(unpack(node.prefix())): candidate for candidate, node in offered.items()}


def test_shared_prefixes_with_their_parents() -> None:
    it = tree()
    add(it, [1, 2, 3, 7], session=1)
    add(it, [1, 2, 3, 8], session=2)
    add(it, [1, 2, 9], session=3)
    found = by_text(offer(it, [], 2.0))
    assert set(found) == {(1, 2), (1, 2, 3)}
    short, long = found[1, 2], found[1, 2, 3]
    assert (short.parent, short.tokens, short.kind, short.tenant) == (None, 2, "shared", "")
    assert (long.parent, long.tokens) == (short.id, 3)
    assert short.per_hour > long.per_hour > 0


def test_what_too_few_said_is_offered_only_while_its_state_is_held() -> None:
    it = tree()
    add(it, [1, 2, 3], session=1)
    end = add(it, [1, 2, 4, 5], session=2)
    assert set(by_text(offer(it, [], 2.0))) == {(1, 2)}
    found = by_text(offer(it, [end, 999], 2.0))
    assert found[1, 2, 4, 5].kind == "recent"
    assert found[1, 2, 4, 5].parent == found[1, 2].id
    assert found[1, 2].kind == "shared"


def test_held_ends_bring_all_that_is_on_their_way() -> None:
    it = tree(quorum=3)
    add(it, [1, 2, 3], session=1)
    end = add(it, [1, 2, 3, 4], session=1)
    found = by_text(offer(it, [end], 2.0))
    assert {text: c.kind for text, c in found.items()} == {(1, 2, 3): "recent", (1, 2, 3, 4): "recent"}


def test_templates_belong_to_nobody() -> None:
    it = tree()
    it.pin(pack([5, 6]))
    add(it, [5, 6, 7], session=1, tenant="a")
    (found,) = offer(it, [], 2.0)
    assert (found.kind, found.tenant, found.tokens, found.parent) == ("pinned", None, 2, None)


def test_tenants_keep_their_names() -> None:
    it = tree(quorum=1)
    add(it, [1, 2], session=1, tenant="a")
    add(it, [1, 2], session=1, tenant="b")
    assert sorted(str(c.tenant) for c in offer(it, [], 2.0)) == ["a", "b"]


@pytest.mark.parametrize("order", [1, -1])
def test_a_line_of_prefixes_longer_than_the_stack_is_deep(order: int) -> None:
    it = tree(quorum=1)
    line = list(range(3000))
    for length in range(1, 3000)[::order]:
        add(it, line[:length], session=1)
    found = offer(it, [], 2.0)
    assert len(found) == DEEPEST
    assert max(c.tokens for c in found) == DEEPEST
    assert it.match("", pack(line)).tokens == DEEPEST
