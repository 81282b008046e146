"""Every node computes the same order, and somebody always goes."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from node.fleet import claims

NODES = st.sets(st.text("abcdef0123456789", min_size=1, max_size=8), min_size=2, max_size=8)
CHUNKS = st.text("0123456789abcdef", min_size=4, max_size=8)


@settings(max_examples=60)
@given(NODES, CHUNKS)
def test_there_is_exactly_one_first(nodes: set[str], chunk: str) -> None:
    order = claims.order(nodes, chunk)
    assert set(order) == nodes
    assert order == claims.order(sorted(nodes), chunk)
    assert [claims.place(node, nodes - {node}, chunk) for node in order] == list(range(len(nodes)))
    for first, second in itertools.pairwise(order):
        assert claims.before(first, second, chunk)
        assert not claims.before(second, first, chunk)


@settings(max_examples=60)
@given(NODES, CHUNKS)
def test_who_leaves_changes_nothing_among_the_others(nodes: set[str], chunk: str) -> None:
    order = claims.order(nodes, chunk)
    assert claims.order(nodes - {order[0]}, chunk) == order[1:]


def test_chunks_are_spread() -> None:
    nodes = [f"node-{number}" for number in range(6)]
    firsts = [claims.order(nodes, f"{number:064x}")[0] for number in range(600)]
    assert all(60 <= firsts.count(node) <= 150 for node in nodes)
