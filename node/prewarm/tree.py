"""Prompts as radix trees over token ids, one a tenant: what was asked, how often, and by how many sessions.

A node is an edge, the run of token ids beyond its parent; every prompt is a path, and ends where a node ends. Where two
prompts part, the edge they have in common is split, so that every node knows exactly who came through it.

Privacy: a node is `shared` once `quorum` different sessions came through it; what they share ends there, however long
their prompts go on. A session that is not known counts for nobody; with a quorum of 1 everything is shared. `pinned`
nodes are parts of templates: they have a tree of their own (tenant None), in which only `pin` makes nodes.

Memory is bounded by `max_bytes`, counted as NODE_BYTES a node (what CPython takes for one with its place among its
siblings and its evidence; the tests measure it) and 4 bytes a token. At the bound leaves go, one for one that comes: of
the next few in turn the one worth least, by the tokens that are expected of it in the coming hour, for each byte. What
is short of its quorum is worth only the part of it that it has.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from node.prewarm.demand import Demand, HalfLives

NODE_BYTES = 480
LATEST = 256  # prompts whose ends are remembered
DEEPEST = 64  # nodes of a path that are followed: who sends a prompt word by word must not slow the others down
COMPARED = 8  # leaves of which one goes; comparing all of them would hold up everybody
_TOKEN_BYTES = 4

Tenant = str | None


def pack(ids: Sequence[int]) -> bytes:
    """Token ids as the tree keeps them: 32 bits each, in this machine's byte order."""
    return array("i", ids).tobytes()


def unpack(packed: bytes) -> list[int]:
    """The token ids that `pack` was given."""
    return array("i", packed).tolist()


class Node(Demand):
    """One edge and who came through it: `sessions` are digests, as many as the quorum needs. Ids never come again."""

    __slots__ = ("children", "edge", "id", "parent", "pinned", "queued", "sessions", "shared")

    def __init__(self, id: int, parent: Node | None, edge: bytes) -> None:
        super().__init__()
        self.id = id
        self.parent = parent
        self.edge = edge
        self.children: dict[int, Node] | None = None
        self.sessions: tuple[int, ...] = ()
        self.shared = False
        self.pinned = False
        self.queued = False  # whether its turn to be evicted will come

    @property
    def tokens(self) -> int:
        """Token ids of the edge."""
        return len(self.edge) // _TOKEN_BYTES

    def path(self) -> list[Node]:
        """The nodes from below the root down to this one; none for a root, and for one that was removed."""
        nodes, node = [], self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def root(self) -> Root:
        """Where its path begins."""
        node = self
        while node.parent is not None:
            node = node.parent
        assert isinstance(node, Root), "paths begin at roots"
        return node

    def prefix(self) -> bytes:
        """All token ids from the root to the end of the edge, packed; raises KeyError once it was removed."""
        path = self.path()
        if not path:
            raise KeyError(self.id)
        return b"".join(node.edge for node in path)


class Root(Node):
    """Where the tree of a tenant begins: a node without an edge. None is the tenant of templates."""

    __slots__ = ("tenant",)

    def __init__(self, tenant: Tenant) -> None:
        super().__init__(0, None, b"")
        self.tenant = tenant


@dataclass(frozen=True, slots=True)
class Match:
    """How many leading tokens of a prompt the tree knows, and how many of those are shared or pinned."""

    tokens: int
    offered: int


class PrefixTree:
    """All tenants' trees. Times are seconds of the wall clock; `since` is when counting began."""

    def __init__(self, quorum: int, max_bytes: int, half_lives: HalfLives, since: float) -> None:
        self.quorum = quorum
        self.half_lives = half_lives
        self.since = since
        self.roots: dict[Tenant, Root] = {}
        self.shared: dict[int, Node] = {}
        self.pinned: dict[int, Node] = {}
        self.latest: dict[int, Node] = {}  # where the latest prompts ended, oldest first
        self.changed: set[int] = set()  # shared nodes, present and gone, that differ from when this was last cleared
        self.nodes = 0
        self.tokens = 0
        self._max_bytes = max_bytes
        self._turns: deque[Node] = deque()  # every leaf, and nodes that were leaves
        self._next_id = 1

    @property
    def size(self) -> int:
        """What it takes in memory, by the stated costs."""
        return self.nodes * NODE_BYTES + self.tokens * _TOKEN_BYTES

    def add(self, tenant: str, ids: bytes, session: int | None, now: float) -> Node:
        """A prompt was asked by `session`, None where it is not known; gives the node in which it ends."""
        if pinned := self.roots.get(None):
            for node, common in _along(pinned, ids):
                if common == len(node.edge):
                    node.note(now, self.half_lives)
        end = self._reach(tenant, ids)
        for node in end.path():
            self._saw(node, session, now)
        self.latest.pop(end.id, None)
        self.latest[end.id] = end
        if len(self.latest) > LATEST:
            del self.latest[next(iter(self.latest))]
        self.shrink(self._max_bytes, now)
        return end

    def pin(self, ids: bytes) -> None:
        """These tokens are part of a template: they have no tenant, no quorum and no age."""
        for node in self._reach(None, ids).path():
            self._pin(node)

    def match(self, tenant: str, ids: bytes) -> Match:
        """How much of a prompt is known; an edge that it leaves half way counts as far as it goes."""
        known = offered = 0
        for root in (self.roots.get(None), self.roots.get(tenant)):
            at = 0
            for node, common in _along(root, ids):
                at += common
                known = max(known, at)
                if node.shared or node.pinned:
                    offered = max(offered, at)
        return Match(known // _TOKEN_BYTES, offered // _TOKEN_BYTES)

    def value(self, node: Node, now: float) -> float:
        """Tokens that are expected of a node in the coming hour, for each byte that it takes."""
        certain = 1.0 if node.shared else len(node.sessions) / self.quorum
        density = node.tokens / (NODE_BYTES + len(node.edge))
        return certain * node.per_hour(now, self.half_lives, self.since) * density

    def expire(self, now: float, max_age_s: float) -> int:
        """Forget what nobody came through for so long; returns how many nodes went."""
        old = [node for node in self._all() if not node.pinned and now - node.last > max_age_s]
        for node in reversed(old):  # children come after their parents, and are never younger
            self._remove(node)
        return len(old)

    def shrink(self, size: int, now: float) -> None:
        """Forget leaves worth little until no more than `size` bytes are taken; templates stay."""
        while self.size > size and (leaves := self._next_leaves()):
            worst = min(leaves, key=lambda leaf: self.value(leaf, now))
            for leaf in leaves:
                if leaf is not worst:
                    self._queue(leaf)
            self._remove(worst)

    def restore(self, id: int, tenant: str, parent: Node | None, edge: bytes) -> Node:
        """Put back a shared node, below `parent` or the tenant's root; raises ValueError where another one stands."""
        above = parent or self._root(tenant)
        if not edge or (above.children and _first(edge) in above.children):
            raise ValueError("two nodes begin alike")
        node = self._new(above, edge, id)
        self._share(node)
        return node

    def _root(self, tenant: Tenant) -> Root:
        if tenant not in self.roots:
            self.roots[tenant] = Root(tenant)
        return self.roots[tenant]

    def _reach(self, tenant: Tenant, ids: bytes) -> Node:
        """The node where `ids` end; made, by splitting an edge or adding one, where there is none.

        Where that would be too deep, the node above stands for it.
        """
        root = self._root(tenant)
        node: Node = root
        at = depth = 0
        for child, common in _along(root, ids):
            node = child if common == len(child.edge) else self._split(child, common)
            at += common
            depth += 1
        return self._new(node, ids[at:]) if at < len(ids) and depth < DEEPEST else node

    def _new(self, parent: Node, edge: bytes, id: int = 0) -> Node:
        node = Node(id or self._next_id, parent, edge)
        self._next_id = max(self._next_id, node.id + 1)
        if parent.children is None:
            parent.children = {}
        parent.children[_first(edge)] = node
        self.nodes += 1
        self.tokens += node.tokens
        self._queue(node)
        return node

    def _split(self, lower: Node, at: int) -> Node:
        """Cut an edge in two; the upper part is new, and whoever came through the whole edge came through it."""
        assert lower.parent is not None, "a root has no edge"
        upper = self._new(lower.parent, lower.edge[:at])
        lower.copy_to(upper)
        upper.sessions = lower.sessions
        upper.children = {_first(lower.edge[at:]): lower}
        self.tokens -= upper.tokens
        lower.edge, lower.parent = lower.edge[at:], upper
        if lower.shared:
            self._share(upper)
            self.changed.add(lower.id)
        if lower.pinned:
            self._pin(upper)
        return upper

    def _saw(self, node: Node, session: int | None, now: float) -> None:
        node.note(now, self.half_lives)
        if node.shared:
            self.changed.add(node.id)
            return
        if session is not None and session not in node.sessions:
            node.sessions += (session,)
        if len(node.sessions) >= self.quorum or self.quorum == 1:
            node.count_hours()
            self._share(node)

    def _share(self, node: Node) -> None:
        node.shared, node.sessions = True, ()
        self.shared[node.id] = node
        self.changed.add(node.id)

    def _pin(self, node: Node) -> None:
        node.pinned = True
        self.pinned[node.id] = node

    def _remove(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None and parent.children is not None, "a root is never removed"  # noqa: PT018
        del parent.children[_first(leaf.edge)]
        if not parent.children:
            parent.children = None
            self._queue(parent)
        self.latest.pop(leaf.id, None)
        self.nodes -= 1
        self.tokens -= leaf.tokens
        leaf.parent = None
        if leaf.shared:
            del self.shared[leaf.id]
            self.changed.add(leaf.id)

    def _queue(self, leaf: Node) -> None:
        if not leaf.queued:
            leaf.queued = True
            self._turns.append(leaf)

    def _next_leaves(self) -> list[Node]:
        """The next few that may go; those that are no leaves any more, or are gone, lose their turn."""
        leaves: list[Node] = []
        while self._turns and len(leaves) < COMPARED:
            node = self._turns.popleft()
            node.queued = False
            if node.parent is not None and not node.children and not node.pinned:
                leaves.append(node)
        return leaves

    def _all(self) -> Iterator[Node]:
        for root in self.roots.values():
            yield from _below(root)


def _along(root: Node | None, ids: bytes) -> Iterator[tuple[Node, int]]:
    """The nodes on the way of `ids` and how many bytes of each edge they have; only the last may be incomplete."""
    node, at, tokens = root, 0, memoryview(ids).cast("i")
    for _ in range(DEEPEST):
        if node is None or not node.children or at == len(ids):
            return
        child = node.children.get(tokens[at // _TOKEN_BYTES])
        if child is None:
            return
        common = _common(child.edge, ids, at)
        whole = common == len(child.edge)  # asked first: whoever gets the node may split it
        yield child, common
        if not whole:
            return
        node, at = child, at + common


def _common(edge: bytes, ids: bytes, at: int) -> int:
    """Bytes of whole tokens that `edge` and `ids[at:]` have in common, by a few comparisons of memory."""
    if ids.startswith(edge, at):
        return len(edge)
    least, beyond = 0, min(len(edge), len(ids) - at) // _TOKEN_BYTES + 1
    while beyond - least > 1:
        middle = (least + beyond) // 2
        size = middle * _TOKEN_BYTES
        if edge[:size] == ids[at : at + size]:
            least = middle
        else:
            beyond = middle
    return least * _TOKEN_BYTES


def _below(root: Node) -> Iterable[Node]:
    """Every node under `root`, parents first."""
    waiting = list(root.children.values()) if root.children else []
    while waiting:
        node = waiting.pop()
        yield node
        if node.children:
            waiting += node.children.values()


def _first(edge: bytes) -> int:
    return int.from_bytes(edge[:_TOKEN_BYTES], sys.byteorder, signed=True)
