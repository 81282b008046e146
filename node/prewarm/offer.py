"""What of the tree may be warm: the candidates for a plan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from node.prewarm.plan import Candidate, Kind
from node.prewarm.tree import DEEPEST, Node, PrefixTree, Tenant


def offer(tree: PrefixTree, held: Iterable[int], now: float) -> dict[Candidate, Node]:
    """Pinned and shared prefixes, and `recent` ones: those on the way to the ends `held`, whose states are in memory.

    Whatever a candidate begins with is a candidate too. Nodes too deep to be followed are none.
    """
    nodes = {**tree.pinned, **tree.shared}
    for end in held:
        if node := tree.latest.get(end):
            nodes.update((above.id, above) for above in node.path())
    known: dict[Node, _Whole] = {root: _Whole(0, 0, tenant) for tenant, root in tree.roots.items()}
    wholes = ((node, _whole(node, known)) for node in nodes.values())
    return {_candidate(tree, node, whole, now): node for node, whole in wholes if whole.depth <= DEEPEST}


class _Whole(NamedTuple):
    """A prefix from its root on: how many nodes and tokens, and whose."""

    depth: int
    tokens: int
    tenant: Tenant


def _candidate(tree: PrefixTree, node: Node, whole: _Whole, now: float) -> Candidate:
    kind: Kind = "pinned" if node.pinned else "shared" if node.shared else "recent"
    assert node.parent is not None, "a root is no candidate"
    expected = node.per_hour(now, tree.half_lives, tree.since)
    return Candidate(node.id, node.parent.id or None, whole.tenant, whole.tokens, expected, kind)


def _whole(node: Node, known: dict[Node, _Whole]) -> _Whole:
    """By what is known of the nodes above it."""
    new: list[Node] = []
    above = node
    while above not in known:
        assert above.parent is not None, "roots are known"
        new.append(above)
        above = above.parent
    whole = known[above]
    for below in reversed(new):
        whole = known[below] = _Whole(whole.depth + 1, whole.tokens + below.tokens, whole.tenant)
    return whole
