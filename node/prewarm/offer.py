"""What of the tree may be warm: the candidates for a plan."""

from __future__ import annotations

from collections.abc import Iterable

from node.prewarm.plan import Candidate, Kind
from node.prewarm.tree import Node, PrefixTree, Tenant


def offer(tree: PrefixTree, held: Iterable[int], now: float) -> dict[Candidate, Node]:
    """Pinned and shared prefixes, and `recent` ones: those on the way to the ends `held`, whose states are in memory.

    Whatever a candidate begins with is a candidate too.
    """
    nodes = {**tree.pinned, **tree.shared}
    for end in held:
        if node := tree.latest.get(end):
            nodes.update((above.id, above) for above in node.path())
    known: dict[Node, tuple[int, Tenant]] = {root: (0, tenant) for tenant, root in tree.roots.items()}
    return {_candidate(tree, node, *_whole(node, known), now): node for node in nodes.values()}


def _candidate(tree: PrefixTree, node: Node, tokens: int, tenant: Tenant, now: float) -> Candidate:
    kind: Kind = "pinned" if node.pinned else "shared" if node.shared else "recent"
    assert node.parent is not None, "a root is no candidate"
    expected = node.per_hour(now, tree.half_lives, tree.since)
    return Candidate(node.id, node.parent.id or None, tenant, tokens, expected, kind)


def _whole(node: Node, known: dict[Node, tuple[int, Tenant]]) -> tuple[int, Tenant]:
    """Tokens of a whole prefix and whose it is, by what is known of the nodes above it."""
    new: list[Node] = []
    above = node
    while above not in known:
        assert above.parent is not None, "roots are known"
        new.append(above)
        above = above.parent
    for below in reversed(new):
        assert below.parent is not None, "roots are known"
        tokens, tenant = known[below.parent]
        known[below] = tokens + below.tokens, tenant
    return known[node]
